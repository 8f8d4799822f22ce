package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
)

// Problem is what is wrong at one place of a topology document.
type Problem struct {
	Path string // such as $.shard_groups[0].key_ranges[1].start
	Text string
	Hint string // what to do about it, if that is not plain
}

// String gives the path and the text.
func (p Problem) String() string { return p.Path + ": " + p.Text }

// jsonNode is a JSON value that knows where it stands. Unlike what encoding/json makes, objects keep the order of their
// members, and two members of one name are noticed.
type jsonNode struct {
	path    string
	kind    jsonKind
	members []jsonMember
	items   []*jsonNode
	text    string // of a string, or of a number as it was written
	truth   bool
}

type jsonMember struct {
	name  string
	value *jsonNode
}

type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonArray
	jsonObject
)

// String gives the kind as messages name it.
func (k jsonKind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// member gives the member of that name, nil when there is none or when it is null.
func (n *jsonNode) member(name string) *jsonNode {
	for _, m := range n.members {
		if m.name == name && m.value.kind != jsonNull {
			return m.value
		}
	}
	return nil
}

// maxJSONDepth is well above what a topology needs.
const maxJSONDepth = 32

// readJSON reads one value. A syntax error is told with its line and column.
func readJSON(doc []byte) (*jsonNode, []Problem) {
	r := &jsonReader{doc: doc, dec: json.NewDecoder(bytes.NewReader(doc))}
	r.dec.UseNumber()
	root := r.value("$", 0)
	if r.err == nil {
		if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
			r.err = errors.New("there is more after the document's end")
		}
	}
	if r.err != nil {
		return nil, []Problem{{Path: "$", Text: r.syntaxError()}}
	}
	return root, r.problems
}

type jsonReader struct {
	doc      []byte
	dec      *json.Decoder
	problems []Problem
	err      error
}

func (r *jsonReader) syntaxError() string {
	offset := r.dec.InputOffset()
	if syntax := (*json.SyntaxError)(nil); errors.As(r.err, &syntax) {
		offset = syntax.Offset
	}
	before := r.doc[:min(int(offset), len(r.doc))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	text := r.err.Error()
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, io.ErrUnexpectedEOF) {
		text = "the document ends too early"
	}
	return fmt.Sprintf("not JSON: line %d, column %d: %s", line, column, text)
}

func (r *jsonReader) token() json.Token {
	if r.err != nil {
		return nil
	}
	t, err := r.dec.Token()
	if err != nil {
		r.err = err
	}
	return t
}

func (r *jsonReader) value(path string, depth int) *jsonNode {
	n := &jsonNode{path: path}
	switch t := r.token().(type) {
	case bool:
		n.kind, n.truth = jsonBool, t
	case json.Number:
		n.kind, n.text = jsonNumber, t.String()
	case string:
		n.kind, n.text = jsonString, t
	case json.Delim:
		if depth == maxJSONDepth {
			r.err = errors.New("values stand in each other too deeply")
			return n
		}
		if t == '[' {
			r.list(n, depth)
		} else {
			r.object(n, depth)
		}
	}
	return n
}

func (r *jsonReader) list(n *jsonNode, depth int) {
	n.kind = jsonArray
	for r.err == nil && r.dec.More() {
		n.items = append(n.items, r.value(n.path+"["+strconv.Itoa(len(n.items))+"]", depth+1))
	}
	r.token()
}

func (r *jsonReader) object(n *jsonNode, depth int) {
	n.kind = jsonObject
	seen := map[string]bool{}
	for r.err == nil && r.dec.More() {
		name, _ := r.token().(string)
		path := n.path + pathStep(name)
		if seen[name] {
			r.problems = append(r.problems, Problem{Path: path, Text: "stands here twice"})
		}
		seen[name] = true
		n.members = append(n.members, jsonMember{name, r.value(path, depth+1)})
	}
	r.token()
}

var plainStep = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// pathStep writes a member as JSON paths of SQL do.
func pathStep(name string) string {
	if plainStep.MatchString(name) {
		return "." + name
	}
	return "." + strconv.Quote(name)
}
