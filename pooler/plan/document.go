package plan

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
)

// document is an ordered tree of properties that can be written in each format of EXPLAIN.
type document struct {
	properties []property
	short      string // all of it in one line, for text
}

// property has one of value, lines and items.
type property struct {
	name  string
	value string
	bare  bool   // a number or boolean, which JSON and YAML write without quotes
	unit  string // of a number, shown in text only
	lines []string
	items []*document
}

func newDocument() *document { return &document{} }

func (d *document) add(name, value string) {
	d.properties = append(d.properties, property{name: name, value: value})
}

// addBare adds a number or boolean.
func (d *document) addBare(name, value, unit string) {
	d.properties = append(d.properties, property{name: name, value: value, bare: true, unit: unit})
}

// quoted is the value as JSON writes it.
func (p property) quoted() string {
	if p.bare {
		return p.value
	}
	return quoteJSON(p.value)
}

func (d *document) list(name string, lines []string) {
	d.properties = append(d.properties, property{name: name, lines: lines})
}

// item begins a new item of a list of groups, which is the last property or a new one.
func (d *document) item(name, short string) *document {
	n := len(d.properties)
	if n == 0 || d.properties[n-1].name != name {
		d.properties = append(d.properties, property{name: name})
		n++
	}
	it := &document{short: short}
	d.properties[n-1].items = append(d.properties[n-1].items, it)
	return it
}

// text gives one line for each property; the first is the head, as a plan's top node is. Items take one line each.
func (d *document) text() []string {
	var out []string
	for i, p := range d.properties {
		indent := "  "
		if i == 0 {
			indent = ""
		}
		switch {
		case p.items != nil:
			out = append(out, indent+p.name+":")
			for _, it := range p.items {
				out = append(append(out, indent+"  "+it.short), it.inside(indent+"    ")...)
			}
		case p.lines != nil && strings.Contains(p.name, "Plan") || p.name == "Engine":
			out = append(out, indent+p.name+":")
			for _, l := range p.lines {
				out = append(out, indent+"  "+l)
			}
		case p.lines != nil:
			out = append(out, indent+p.name+": "+strings.Join(p.lines, ", "))
		default:
			out = append(out, indent+p.name+": "+p.value+p.unit)
		}
	}
	return out
}

// inside gives the lines below an item's own: its items, and plans of Postgres.
func (d *document) inside(indent string) []string {
	var out []string
	for _, p := range d.properties {
		for _, it := range p.items {
			out = append(append(out, indent+it.short), it.inside(indent+"  ")...)
		}
		if strings.Contains(p.name, "Plan") {
			for _, l := range p.lines {
				out = append(out, indent+l)
			}
		}
	}
	return out
}

func (d *document) json() string {
	var b bytes.Buffer
	b.WriteString("[\n  ")
	d.writeJSON(&b, "  ")
	b.WriteString("\n]")
	return b.String()
}

func (d *document) writeJSON(b *bytes.Buffer, indent string) {
	b.WriteString("{")
	for i, p := range d.properties {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n" + indent + "  " + quoteJSON(p.name) + ": ")
		switch {
		case p.items != nil:
			b.WriteString("[")
			for j, it := range p.items {
				if j > 0 {
					b.WriteString(", ")
				}
				it.writeJSON(b, indent+"  ")
			}
			b.WriteString("]")
		case p.lines != nil:
			b.WriteString("[")
			for j, l := range p.lines {
				if j > 0 {
					b.WriteString(", ")
				}
				b.WriteString(quoteJSON(l))
			}
			b.WriteString("]")
		default:
			b.WriteString(p.quoted())
		}
	}
	b.WriteString("\n" + indent + "}")
}

func quoteJSON(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// yaml writes strings in JSON's quotes, which YAML reads.
func (d *document) yaml() string {
	var b strings.Builder
	d.writeYAML(&b, "- ", "  ")
	return strings.TrimSuffix(b.String(), "\n")
}

func (d *document) writeYAML(b *strings.Builder, first, indent string) {
	lead := first
	for _, p := range d.properties {
		b.WriteString(lead + p.name + ":")
		lead = indent
		switch {
		case p.items != nil:
			b.WriteString("\n")
			for _, it := range p.items {
				it.writeYAML(b, indent+"  - ", indent+"    ")
			}
		case p.lines != nil:
			b.WriteString("\n")
			for _, l := range p.lines {
				b.WriteString(indent + "  - " + quoteJSON(l) + "\n")
			}
		default:
			b.WriteString(" " + p.quoted() + "\n")
		}
	}
}

func (d *document) xml() string {
	var b strings.Builder
	b.WriteString("<explain xmlns=\"http://www.postgresql.org/2009/explain\">\n  <Query>\n")
	d.writeXML(&b, "    ")
	b.WriteString("  </Query>\n</explain>")
	return b.String()
}

func (d *document) writeXML(b *strings.Builder, indent string) {
	for _, p := range d.properties {
		name := strings.ReplaceAll(p.name, " ", "-")
		b.WriteString(indent + "<" + name + ">")
		switch {
		case p.items != nil:
			b.WriteString("\n")
			for _, it := range p.items {
				b.WriteString(indent + "  <Item>\n")
				it.writeXML(b, indent+"    ")
				b.WriteString(indent + "  </Item>\n")
			}
			b.WriteString(indent)
		case p.lines != nil:
			b.WriteString("\n")
			for _, l := range p.lines {
				b.WriteString(indent + "  <Item>" + escapeXML(l) + "</Item>\n")
			}
			b.WriteString(indent)
		default:
			b.WriteString(escapeXML(p.value))
		}
		b.WriteString("</" + name + ">\n")
	}
}

func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder's Write never fails
	return b.String()
}
