package settings

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"neki/internal/pgerr"
)

// keys are the known keys of a mapping in neki.yaml, with those of the mappings within; nil = anything goes.
type keys map[string]keys

// configKeys is made from Config's tags, so that there is one list of keys.
var configKeys = keysOf(reflect.TypeFor[Config]())

func keysOf(t reflect.Type) keys {
	for t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t == reflect.TypeFor[AuthRule]() {
		t = reflect.TypeFor[ruleFields]()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	k := keys{}
	for i := range t.NumField() {
		k[t.Field(i).Tag.Get("yaml")] = keysOf(t.Field(i).Type)
	}
	return k
}

// checkKeys finds the keys of a document that nothing reads.
func checkKeys(n *yaml.Node, known keys, path string) (problems []string) {
	switch {
	case known == nil:
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			within, ok := known[key.Value]
			if !ok {
				problems = append(problems, unknownKey(key, path, known))
				continue
			}
			problems = append(problems, checkKeys(n.Content[i+1], within, path+key.Value+".")...)
		}
	default:
		for _, c := range n.Content {
			problems = append(problems, checkKeys(c, known, path)...)
		}
	}
	return problems
}

func unknownKey(key *yaml.Node, path string, known keys) string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	text := fmt.Sprintf("line %d: unknown key %q", key.Line, path+key.Value)
	if near := pgerr.Nearest(key.Value, names); near != "" {
		text += fmt.Sprintf(" (perhaps you meant %q)", path+near)
	}
	return text
}

// find gives the node at a path of keys and indexes, or the deepest that is there on the way to it.
func find(n *yaml.Node, path string) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	key, rest, more := strings.Cut(path, ".")
	child := childOf(n, key)
	switch {
	case child == nil:
		return n
	case more:
		return find(child, rest)
	}
	return child
}

func childOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(key); err == nil && i < len(n.Content) {
			return n.Content[i]
		}
		return nil
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// yamlProblems gives the library's complaints one by one; each starts with its line.
func yamlProblems(err error) []string {
	var typed *yaml.TypeError
	if errors.As(err, &typed) {
		return typed.Errors
	}
	return []string{yamlMessage(err)}
}

func yamlMessage(err error) string { return strings.TrimPrefix(err.Error(), "yaml: ") }

func withHint(err error) string {
	e := pgerr.From(err)
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + e.Hint + ")"
}
