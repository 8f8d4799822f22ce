package pgwire

import (
	"unicode/utf8"

	"github.com/xdg-go/stringprep"
	"golang.org/x/text/unicode/norm"
)

// saslPrep prepares a password as Postgres does, which is SASLprep (RFC 4013) with these turns: pure ASCII is taken as
// it is; text that is not UTF-8, holds a prohibited character or maps to nothing is used raw; prohibitions are looked
// for before normalization; and U+200B, which RFC 4013 has in two tables, becomes a space.
func saslPrep(password string) string {
	if isASCII(password) || !utf8.ValidString(password) {
		return password
	}
	mapped, err := mapAndProhibit().Prepare(password)
	if err != nil || mapped == "" {
		return password
	}
	return norm.NFKC.String(mapped)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// mapAndProhibit is SASLprep but for the normalization.
func mapAndProhibit() stringprep.Profile {
	p := stringprep.SASLprep
	p.Mappings = []stringprep.Mapping{nonASCIISpaces(), stringprep.TableB1}
	p.Normalize = false
	return p
}

// nonASCIISpaces maps table C.1.2 to a space.
func nonASCIISpaces() stringprep.Mapping {
	space := []rune{' '}
	m := stringprep.Mapping{0x00a0: space, 0x1680: space, 0x202f: space, 0x205f: space, 0x3000: space}
	for r := rune(0x2000); r <= 0x200b; r++ {
		m[r] = space
	}
	return m
}
