package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"neki/internal/pgerr"
)

// ParseTopology reads a data topology document. With problems, what they concern is left out of the topology: tables that
// would be placed by it are not placed at all (NK006). The topology is nil when the document is not JSON or says nothing
// about an authoritative group, and never when there are no problems.
func ParseTopology(doc []byte) (*Topology, []Problem) {
	root, problems := readJSON(doc)
	if root == nil {
		return nil, problems
	}
	p := &topologyParser{topology: &Topology{databases: map[string]*databasePlaces{}}, problems: problems}
	if p.isKind(root, jsonObject) {
		p.document(root)
	}
	if p.topology.Authoritative == nil {
		return nil, p.problems
	}
	return p.topology, p.problems
}

// topologyParser fills a topology and collects what is wrong.
type topologyParser struct {
	topology *Topology
	problems []Problem
}

func (p *topologyParser) report(n *jsonNode, format string, args ...any) {
	p.problems = append(p.problems, Problem{Path: n.path, Text: fmt.Sprintf(format, args...)})
}

// isKind reports a node of another kind.
func (p *topologyParser) isKind(n *jsonNode, kind jsonKind) bool {
	if n == nil {
		return false
	}
	if n.kind != kind {
		p.report(n, "must be %s, not %s", kind, n.kind)
	}
	return n.kind == kind
}

// known reports members that mean nothing: most are typing errors, which must not be silent.
func (p *topologyParser) known(n *jsonNode, names ...string) {
	for _, m := range n.members {
		if slices.Contains(names, m.name) {
			continue
		}
		text := "unknown member"
		if near := pgerr.Nearest(m.name, names); near != "" {
			text += ": perhaps \"" + near + "\" is meant"
		}
		p.report(m.value, "%s", text)
	}
}

// children gives the members of an object that maps names to something; none when it is absent.
func (p *topologyParser) children(n *jsonNode) []jsonMember {
	if n == nil || !p.isKind(n, jsonObject) {
		return nil
	}
	named := slices.Clone(n.members)
	return slices.DeleteFunc(named, func(m jsonMember) bool {
		if m.name == "" {
			p.report(m.value, "needs a name")
		}
		return m.name == ""
	})
}

// stringOf gives a member's text; "" with or without a problem when there is none.
func (p *topologyParser) stringOf(n *jsonNode, name string, required bool) string {
	m := n.member(name)
	if m == nil {
		if required {
			p.report(n, "needs \"%s\"", name)
		}
		return ""
	}
	if !p.isKind(m, jsonString) {
		return ""
	}
	if m.text == "" {
		p.report(m, "must not be empty")
	}
	return m.text
}

func (p *topologyParser) stringsOf(n *jsonNode, name string, required bool) []string {
	m := n.member(name)
	if m == nil {
		if required {
			p.report(n, "needs \"%s\"", name)
		}
		return nil
	}
	if !p.isKind(m, jsonArray) {
		return nil
	}
	if len(m.items) == 0 && required {
		p.report(m, "must not be empty")
	}
	var texts []string
	for _, item := range m.items {
		switch {
		case !p.isKind(item, jsonString):
		case slices.Contains(texts, item.text):
			p.report(item, "stands here twice")
		default:
			texts = append(texts, item.text)
		}
	}
	return texts
}

func (p *topologyParser) boolOf(n *jsonNode, name string, otherwise bool) bool {
	m := n.member(name)
	if m == nil || !p.isKind(m, jsonBool) {
		return otherwise
	}
	return m.truth
}

func (p *topologyParser) document(root *jsonNode) {
	p.known(root, "databases", "shard_groups", "shard_indexes", "authoritative_shard_group", "default_shard_group")
	p.indexes(root.member("shard_indexes"))
	p.groups(root)
	t := p.topology
	if t.Authoritative = p.groupNamed(root, "authoritative_shard_group"); t.Authoritative == nil {
		if root.member("authoritative_shard_group") == nil {
			p.report(root, "needs \"authoritative_shard_group\"")
		}
		return
	}
	if len(t.Authoritative.Ranges) != 1 {
		p.report(root.member("authoritative_shard_group"),
			"the authoritative group must have exactly one range, without bounds: one shard")
		t.Authoritative = nil
		return
	}
	if t.Default = p.groupNamed(root, "default_shard_group"); t.Default != nil && t.Default != t.Authoritative {
		p.report(root.member("default_shard_group"), "must be absent or the authoritative group \"%s\"", t.Authoritative.UID)
		t.Default = nil
	}
	t.system = &Table{Group: t.Authoritative}
	if t.Default != nil {
		t.fallback = &Table{Group: t.Default}
	}
	for _, m := range p.children(root.member("databases")) {
		p.database(m.name, m.value)
	}
	t.finish()
}

func (p *topologyParser) indexes(n *jsonNode) {
	for _, m := range p.children(n) {
		if ix := p.index(m.name, m.value); ix != nil {
			p.topology.Indexes = append(p.topology.Indexes, ix)
		}
	}
}

func (p *topologyParser) index(name string, n *jsonNode) *Index {
	if !p.isKind(n, jsonObject) {
		return nil
	}
	p.known(n, "type", "columns", "index_params")
	before := len(p.problems)
	ix := &Index{Name: name}
	switch kind := p.stringOf(n, "type", true); kind {
	case "xxhash":
		ix.Type = IndexXXHash
	case "modulo":
		ix.Type = IndexModulo
	case "range":
		ix.Type = IndexRange
	case "":
	default:
		p.report(n.member("type"), "unknown index type \"%s\": xxhash, modulo or range", kind)
	}
	p.indexColumn(ix, n)
	p.indexParams(ix, n)
	if len(p.problems) > before {
		return nil
	}
	return ix
}

func (p *topologyParser) indexColumn(ix *Index, n *jsonNode) {
	columns := p.stringsOf(n, "columns", true)
	switch {
	case len(columns) > 1:
		p.report(n.member("columns"), "an index has one column, or one expression over one column")
	case len(columns) == 1:
		column, expr, problem := parseColumn(columns[0])
		if problem != "" {
			p.report(n.member("columns").items[0], "\"%s\" %s", columns[0], problem)
		}
		ix.Column, ix.expr = column, expr
		if expr.op != exprNone {
			ix.Expr = columns[0]
		}
	}
	if ix.OfText() && (ix.Type == IndexModulo || ix.Type == IndexRange) {
		p.report(n.member("columns"), "an index of type %s has integers only", ix.Type)
	}
}

func (p *topologyParser) indexParams(ix *Index, n *jsonNode) {
	params := n.member("index_params")
	if params != nil && !p.isKind(params, jsonObject) {
		return
	}
	var modulus *jsonNode
	if params != nil {
		p.known(params, "modulus")
		modulus = params.member("modulus")
	}
	switch {
	case ix.Type != IndexModulo && modulus != nil:
		p.report(modulus, "only an index of type modulo has a modulus")
	case ix.Type == IndexModulo && modulus == nil:
		p.report(n, "an index of type modulo needs \"index_params\": {\"modulus\": n}")
	case ix.Type == IndexModulo:
		value, err := strconv.ParseInt(modulus.text, 10, 64)
		if modulus.kind != jsonNumber || err != nil || value <= 0 {
			p.report(modulus, "must be a positive integer")
		}
		ix.Modulus = value
	}
}

func (p *topologyParser) groups(root *jsonNode) {
	n := root.member("shard_groups")
	if n == nil {
		p.report(root, "needs \"shard_groups\"")
		return
	}
	if !p.isKind(n, jsonArray) {
		return
	}
	for _, item := range n.items {
		g := p.group(item)
		if g == nil {
			continue
		}
		if p.topology.Group(g.UID) != nil {
			p.report(item, "there is another group with the uid \"%s\"", g.UID)
			continue
		}
		p.topology.Groups = append(p.topology.Groups, g)
	}
}

func (p *topologyParser) group(n *jsonNode) *Group {
	if !p.isKind(n, jsonObject) {
		return nil
	}
	p.known(n, "uid", "default_shard_index", "key_ranges")
	before := len(p.problems)
	g := &Group{UID: p.stringOf(n, "uid", true)}
	if g.UID != "" && !ValidName(g.UID) {
		p.report(n.member("uid"), "must be letters, digits, '_', '-' and '.', at most 63")
	}
	g.DefaultIndex = p.indexNamed(n, "default_shard_index")
	p.ranges(g, n)
	if len(p.problems) > before {
		return nil
	}
	return g
}

func (p *topologyParser) ranges(g *Group, n *jsonNode) {
	list := n.member("key_ranges")
	if list == nil {
		p.report(n, "needs \"key_ranges\"")
		return
	}
	if !p.isKind(list, jsonArray) {
		return
	}
	before := len(p.problems)
	var at []*jsonNode
	for _, item := range list.items {
		if r, ok := p.keyRange(item); ok {
			g.Ranges, at = append(g.Ranges, r), append(at, item)
		}
	}
	if len(p.problems) == before {
		p.cover(g, list, at)
	}
}

func (p *topologyParser) keyRange(n *jsonNode) (r KeyRange, ok bool) {
	if !p.isKind(n, jsonObject) {
		return r, false
	}
	p.known(n, "shard_uid", "start", "end")
	before := len(p.problems)
	r.Shard = p.stringOf(n, "shard_uid", true)
	r.Start, r.End = p.bound(n, "start"), p.bound(n, "end")
	if len(p.problems) == before && n.member("end") != nil && r.End <= r.Start {
		p.report(n, "the range is empty: it ends at \"%s\", which is not after its start", n.member("end").text)
	}
	return r, len(p.problems) == before
}

// boundDigits is how many hexadecimal digits a whole key has.
const boundDigits = 16

// bound reads the first bytes of a key; those that follow are zero.
func (p *topologyParser) bound(n *jsonNode, name string) uint64 {
	m := n.member(name)
	if m == nil || m.kind == jsonString && m.text == "" {
		return 0
	}
	if !p.isKind(m, jsonString) {
		return 0
	}
	digits := m.text
	value, err := strconv.ParseUint(digits+strings.Repeat("0", max(0, boundDigits-len(digits))), 16, 64)
	if err != nil || len(digits) > boundDigits || len(digits)%2 != 0 || strings.ContainsAny(digits, "_+-") {
		p.report(m, "must be an even number of hexadecimal digits, at most 16: the first bytes of a key of 8, so that "+
			"\"80\" is 8000000000000000")
	}
	return value
}

// cover sorts the ranges and checks that each key is in one of them.
func (p *topologyParser) cover(g *Group, list *jsonNode, at []*jsonNode) {
	if len(g.Ranges) == 0 {
		p.report(list, "must not be empty")
		return
	}
	nodes := make(map[KeyRange]*jsonNode, len(at))
	for i, r := range g.Ranges {
		nodes[r] = at[i]
	}
	slices.SortFunc(g.Ranges, func(a, b KeyRange) int { return cmp.Compare(a.Start, b.Start) })
	if first := g.Ranges[0]; first.Start != 0 {
		p.report(list, "no range has the keys before %s", BoundText(first.Start))
	}
	for i, r := range g.Ranges {
		g.starts = append(g.starts, r.Start)
		if !slices.Contains(g.Shards, r.Shard) {
			g.Shards = append(g.Shards, r.Shard)
		}
		if i+1 == len(g.Ranges) {
			if r.End != 0 {
				p.report(list, "no range has the keys from %s on", BoundText(r.End))
			}
			return
		}
		switch next := g.Ranges[i+1]; {
		case r.End == 0 || r.End > next.Start:
			p.report(nodes[next], "overlaps the range that starts at %s", BoundText(r.Start))
		case r.End < next.Start:
			p.report(list, "no range has the keys from %s to %s", BoundText(r.End), BoundText(next.Start))
		}
	}
}

// BoundText writes a bound as the document does: without the zero bytes at the end, "00" for the first key.
func BoundText(bound uint64) string {
	digits := fmt.Sprintf("%016x", bound)
	for len(digits) > 2 && strings.HasSuffix(digits, "00") {
		digits = digits[:len(digits)-2]
	}
	return digits
}

// groupNamed gives the group that a member names, nil when there is none, which is a problem only when there is a name.
func (p *topologyParser) groupNamed(n *jsonNode, member string) *Group {
	name := p.stringOf(n, member, false)
	if name == "" {
		return nil
	}
	return p.groupOf(n.member(member), name)
}

func (p *topologyParser) groupOf(at *jsonNode, name string) *Group {
	g := p.topology.Group(name)
	if g == nil {
		p.report(at, "there is no shard group \"%s\"%s", name, perhaps(name, p.topology.Groups, func(g *Group) string { return g.UID }))
	}
	return g
}

func (p *topologyParser) indexNamed(n *jsonNode, member string) *Index {
	name := p.stringOf(n, member, false)
	if name == "" {
		return nil
	}
	ix := p.topology.Index(name)
	if ix == nil {
		p.report(n.member(member), "there is no shard index \"%s\"%s", name,
			perhaps(name, p.topology.Indexes, func(ix *Index) string { return ix.Name }))
	}
	return ix
}

// perhaps suggests the nearest name.
func perhaps[T any](name string, all []T, nameOf func(T) string) string {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = nameOf(v)
	}
	if near := pgerr.Nearest(name, names); near != "" {
		return ": perhaps \"" + near + "\" is meant"
	}
	return ""
}
