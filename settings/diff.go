package settings

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// AppendDiff appends to dst the statements that turn a backend which has have into one that matches want; nothing when
// they match. A nil have or want is the empty set. The __neki values play no part: no backend knows them.
//
// The statements are to be sent as one simple Query outside a transaction block: they take effect together or not at
// all. Parameters are set with the rights of the user that the connection logged in as: a role or session
// authorization that differs is dropped first, and taken on last, the session authorization before the role, because
// setting it drops the role.
func AppendDiff(dst []byte, have, want *Vars) []byte {
	h, w := gucsOf(have), gucsOf(want)
	if h == w {
		return dst
	}
	d := differ{dst: dst, from: len(dst), text: encodingOf(h, w)}
	d.leaveIdentity(h)
	d.parameters(h, w)
	d.enterIdentity(w)
	return d.dst
}

func gucsOf(v *Vars) *gucSet {
	if v == nil {
		return &noGUCs
	}
	if len(v.gucs.pairs) == 0 {
		return &noGUCs
	}
	return v.gucs
}

var noGUCs gucSet

type differ struct {
	dst  []byte
	from int // where the statements begin in dst
	text encoding
}

// statement starts a new statement.
func (d *differ) statement(words string) {
	if len(d.dst) > d.from {
		d.dst = append(d.dst, "; "...)
	}
	d.dst = append(d.dst, words...)
}

func (d *differ) leaveIdentity(h *gucSet) {
	if _, ok := h.find(Role); ok {
		d.statement("RESET ROLE")
	}
	if _, ok := h.find(SessionAuthorization); ok {
		d.statement("RESET SESSION AUTHORIZATION")
	}
}

func (d *differ) enterIdentity(w *gucSet) {
	for _, name := range [...]string{SessionAuthorization, Role} {
		if value, ok := w.get(name); ok {
			d.statement("SELECT ")
			d.setConfig(name, value)
		}
	}
}

// parameters walks both sorted lists: first RESET of what want lacks, then one SELECT that sets all that differ.
func (d *differ) parameters(h, w *gucSet) {
	for _, p := range h.pairs {
		if _, ok := w.find(p.Name); !ok && !isIdentity(p.Name) {
			d.statement("RESET ")
			d.dst = appendName(d.dst, p.Name)
		}
	}
	first := true
	for _, p := range w.pairs {
		if value, ok := h.get(p.Name); ok && value == p.Value || isIdentity(p.Name) {
			continue
		}
		if first {
			d.statement("SELECT ")
			first = false
		} else {
			d.dst = append(d.dst, ", "...)
		}
		d.setConfig(p.Name, p.Value)
	}
}

func isIdentity(name string) bool { return name == Role || name == SessionAuthorization }

func (d *differ) setConfig(name, value string) {
	d.dst = append(d.dst, "pg_catalog.set_config("...)
	d.literal(name)
	d.dst = append(d.dst, ", "...)
	d.literal(value)
	d.dst = append(d.dst, ", false)"...)
}

// literal appends s, which is in want's client encoding, such that the backend, which reads the statement in have's,
// understands the same characters.
func (d *differ) literal(s string) {
	if d.text.plain || isASCII(s) {
		d.dst = appendLiteral(d.dst, s)
		return
	}
	d.dst = append(d.dst, "pg_catalog.convert_from(pg_catalog.decode('"...)
	d.dst = hex.AppendEncode(d.dst, []byte(s))
	d.dst = append(d.dst, "', 'hex'), "...)
	d.dst = appendLiteral(d.dst, d.text.of)
	d.dst = append(d.dst, ')')
}

// encoding says how characters beyond ASCII travel.
type encoding struct {
	of    string // name of the encoding of want's values
	plain bool   // they may stand in a literal as they are
}

const defaultEncoding = "UTF8"

// encodingOf compares the client encodings of both sides. A backend whose encoding nobody has set has the one that
// the gateway opens connections with, UTF8. In UTF8 on both sides literals are safe as they are: no byte of a longer
// character is a quote or a backslash. In any other case they go as hexadecimal bytes.
func encodingOf(h, w *gucSet) encoding {
	from, to := defaultEncoding, defaultEncoding
	if value, ok := h.get("client_encoding"); ok {
		from = value
	}
	if value, ok := w.get("client_encoding"); ok {
		to = value
	}
	return encoding{of: to, plain: isUTF8(from) && isUTF8(to)}
}

// isUTF8 knows the spellings of UTF8: Postgres compares names of encodings by their letters and digits only.
func isUTF8(name string) bool {
	return sameAlphanumerics(name, "utf8") || sameAlphanumerics(name, "unicode")
}

// sameAlphanumerics compares the letters and digits of name with lower, in any case.
func sameAlphanumerics(name, lower string) bool {
	for i := range len(name) {
		c := name[i] | 0x20
		if (c < 'a' || c > 'z') && (name[i] < '0' || name[i] > '9') {
			continue
		}
		if lower == "" || lower[0] != c {
			return false
		}
		lower = lower[1:]
	}
	return lower == ""
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendLiteral quotes s as a string constant that means the same whatever standard_conforming_strings is.
func appendLiteral(dst []byte, s string) []byte {
	if strings.IndexByte(s, '\\') >= 0 {
		dst = append(dst, 'E')
	}
	dst = append(dst, '\'')
	for i := range len(s) {
		if c := s[i]; c == '\'' || c == '\\' {
			dst = append(dst, c)
		}
		dst = append(dst, s[i])
	}
	return append(dst, '\'')
}

// appendName quotes each part of a parameter's name as an identifier.
func appendName(dst []byte, name string) []byte {
	dst = append(dst, '"')
	for i := range len(name) {
		switch c := name[i]; c {
		case '.':
			dst = append(dst, `"."`...)
		case '"':
			dst = append(dst, `""`...)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
