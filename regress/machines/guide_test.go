package machines

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// block is commands of the guide with where they are to be run.
type block struct {
	where string // its first line
	text  string
}

var shBlock = regexp.MustCompile("(?s)```sh\n(# on [^\n]*)\n(.*?)```")

// guide gives the commands of docs/install.md in order.
func guide(t *testing.T) []block {
	t.Helper()
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	var list []block
	for _, m := range shBlock.FindAllStringSubmatch(string(text), -1) {
		list = append(list, block{where: strings.TrimPrefix(m[1], "# "), text: m[2]})
	}
	if all := strings.Count(string(text), "```sh\n"); all != len(list) || all == 0 {
		t.Fatalf("%d of %d blocks say where they are to be run", len(list), all)
	}
	return list
}

// places are the machines that a block is for.
func (s *site) places(b block) []*machine {
	switch b.where {
	case "on every machine", "on every machine, one after the other":
		return s.machines
	case "on m1 and m2":
		return s.machines[:2]
	case "on m1":
		return s.machines[:1]
	}
	s.t.Fatalf("nobody knows where %q is", b.where)
	return nil
}

// follow runs a block.
func (s *site) follow(b block) string {
	s.t.Helper()
	var all strings.Builder
	for _, m := range s.places(b) {
		out, err := s.sh(m, b.text, "ME="+m.name, "ADDRESS="+m.address)
		if err != nil {
			s.t.Fatalf("%s: %v\n%s\n%s", m.name, err, b.text, out)
		}
		all.WriteString(out)
	}
	return all.String()
}
