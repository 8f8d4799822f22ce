package plan

import "unsafe"

// treeFactor is how many bytes a parse tree takes for each byte of text (protobuf structs and pointers).
const treeFactor = 100

// sizeOf estimates the memory that a plan holds, for the cache's bound.
func sizeOf(p *Plan) int64 {
	n := int64(unsafe.Sizeof(*p)) + int64(len(p.Query)+len(p.Fingerprint)+len(p.Why)+len(p.refused))
	n += int64(len(p.key))
	for _, t := range p.Tables {
		n += int64(len(t)) + int64(unsafe.Sizeof(t))
	}
	for _, c := range p.SetConfigs {
		n += int64(unsafe.Sizeof(c)) + int64(len(c.Name)+len(c.Value))
	}
	for _, held := range []bool{
		p.Set != nil, p.Tx != nil, p.Copy != nil, p.Prepared != nil, p.Discard != nil, p.Cursor != nil, p.Channel != nil,
		p.Explain != nil,
	} {
		if held {
			n += 256
		}
	}
	if p.Statement != nil {
		n += int64(len(p.Statement.Text)) * treeFactor
	}
	if p.Prepared != nil && p.Prepared.Query != nil {
		n += int64(len(p.Prepared.Query.Text))
	}
	if p.Inner != nil {
		n += sizeOf(p.Inner)
	}
	if p.Explain != nil && p.Explain.Inner != nil {
		n += sizeOf(p.Explain.Inner)
	}
	return n
}
