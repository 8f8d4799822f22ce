package hba

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// token is a word of a line. A quoted one is a name, whatever it says.
type token struct {
	text   string
	quoted bool
}

// is reports whether the token is the keyword.
func (t token) is(keyword string) bool { return !t.quoted && t.text == keyword }

// field is what stands between blanks: words separated by commas.
type field []token

// maxLine bounds a rule. Postgres has no bound, and nobody such rules.
const maxLine = 64 << 10

var (
	errQuote  = errors.New("a quotation mark is not closed")
	errLength = fmt.Errorf("the line is longer than %d bytes", maxLine)
)

// fields splits a line at blanks that are not in quotes, and drops a comment.
func fields(line string) ([]field, error) {
	if len(line) > maxLine {
		return nil, errLength
	}
	var list []field
	for rest := line; ; {
		rest = strings.TrimLeft(rest, " \t\r\f\v")
		if rest == "" || rest[0] == '#' {
			return list, nil
		}
		f, after, err := nextField(rest)
		if err != nil {
			return nil, err
		}
		list, rest = append(list, f), after
	}
}

// nextField reads words as long as commas join them; blanks may stand behind a comma, as in Postgres.
func nextField(rest string) (f field, after string, err error) {
	for {
		t, after, err := nextToken(rest)
		if err != nil {
			return nil, "", err
		}
		f = append(f, t)
		if !strings.HasPrefix(after, ",") {
			return f, after, nil
		}
		rest = strings.TrimLeft(after[1:], " \t")
		if rest == "" || rest[0] == '#' {
			return f, rest, nil
		}
	}
}

func nextToken(s string) (t token, rest string, err error) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' && quoted && i+1 < len(s) && s[i+1] == '"': // a doubled one stands for itself
			b.WriteByte('"')
			i++
		case c == '"':
			quoted = !quoted
			t.quoted = true
		case !quoted && strings.IndexByte(" \t\r\f\v,#", c) >= 0:
			t.text = b.String()
			return t, s[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return t, "", errQuote
	}
	t.text = b.String()
	return t, "", nil
}

// lines gives the lines of a file with their numbers; a backslash at the end of one joins the next.
func lines(text string, each func(number int, line string)) {
	number, begun, joined := 0, 0, ""
	for line := range strings.SplitSeq(text, "\n") {
		number++
		if joined == "" {
			begun = number
		}
		line = strings.TrimSuffix(line, "\r")
		if part, more := strings.CutSuffix(line, `\`); more {
			joined += part
			continue
		}
		each(begun, joined+line)
		joined = ""
	}
	if joined != "" {
		each(begun, joined)
	}
}

// LineError is what is wrong in a line.
type LineError struct {
	Line int
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap gives the cause.
func (e *LineError) Unwrap() error { return e.Err }

// compile reads a regular expression behind its slash. It matches whole names only if it says so, as in Postgres.
func compile(text string) (*regexp.Regexp, error) {
	re, err := regexp.Compile(strings.TrimPrefix(text, "/"))
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression %q: %w", text, err)
	}
	return re, nil
}
