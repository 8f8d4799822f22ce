package sqlparse

import "strings"

// QuoteIdent writes a name so that Postgres reads it back as it is: as quote_ident does, in double quotes unless it is
// a plain lower-case word that is no keyword (unreserved ones may stay bare).
func QuoteIdent(name string) string {
	if plainIdent(name) && !mustQuote(name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

func plainIdent(name string) bool {
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// QuoteLiteral writes a string constant for a server with standard_conforming_strings = on; one with a backslash
// becomes E'...', as quote_literal makes it, so that it is right with any setting.
func QuoteLiteral(s string) string {
	quoted := strings.ReplaceAll(s, `'`, `''`)
	if strings.IndexByte(s, '\\') < 0 {
		return `'` + quoted + `'`
	}
	return `E'` + strings.ReplaceAll(quoted, `\`, `\\`) + `'`
}
