package settings

import (
	"fmt"
	"strings"
)

// Markdown gives the reference of every setting and parameter for the manual (docs/settings.md).
func Markdown() string {
	var b strings.Builder
	b.WriteString("## Session settings\n\nValues are case-insensitive, but for the uid of a shard.\n\n")
	b.WriteString("| setting | values | default | effect |\n|---|---|---|---|\n")
	for _, s := range table {
		values := s.Type
		if s.Allowed != nil {
			values = "`" + strings.Join(s.Allowed, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, values, code(s.Default), s.Description)
	}
	b.WriteString("\n## Parameters\n\nChanged by SQL without a restart: `CALL neki.set_parameter(scope, name, value)`.\n\n")
	b.WriteString("| parameter | scope | default | effect |\n|---|---|---|---|\n")
	for _, p := range parameterTable {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.Name, p.Scope, code(p.Default), p.Description)
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return "empty"
	}
	return "`" + s + "`"
}
