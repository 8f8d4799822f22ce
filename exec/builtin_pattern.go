package exec

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"neki/internal/datum"
	"neki/internal/pgerr"
)

func likeBuiltin(fold, negate bool) Builtin {
	return func(_ Call, a []datum.Datum) (datum.Datum, error) {
		s, pattern := a[0].Text(), a[1].Text()
		if fold {
			s, pattern = strings.Map(lowerRune, s), strings.Map(lowerRune, pattern)
		}
		ok, err := like(s, pattern)
		return datum.Bool(ok != negate), err
	}
}

var errLikeEscape = pgerr.New("22025", "LIKE pattern must not end with escape character")

// like matches in time proportional to the lengths' product: after a % only the last % is tried again.
func like(s, p string) (bool, error) {
	starS, starP := -1, -1
	i, j := 0, 0
	for {
		if j < len(p) && p[j] == '%' {
			starS, starP = i, j+1
			j++
			continue
		}
		if i == len(s) && j == len(p) {
			return true, nil
		}
		if i < len(s) && j < len(p) {
			switch n := 0; p[j] {
			case '_':
				_, n = utf8.DecodeRuneInString(s[i:])
				i, j = i+n, j+1
				continue
			case '\\':
				if j+1 == len(p) {
					return false, errLikeEscape
				}
				if s[i] == p[j+1] {
					i, j = i+1, j+2
					continue
				}
			default:
				if s[i] == p[j] {
					i, j = i+1, j+1
					continue
				}
			}
		}
		if starP < 0 || starS >= len(s) {
			return false, nil
		}
		_, n := utf8.DecodeRuneInString(s[starS:])
		starS += n
		i, j = starS, starP
	}
}

// likeEscape rewrites a pattern with another escape character to one with a backslash.
func likeEscape(_ Call, a []datum.Datum) (datum.Datum, error) {
	pattern, escape := a[0].Text(), a[1].Text()
	if utf8.RuneCountInString(escape) > 1 {
		return datum.Null, pgerr.New("22019", "invalid escape string").WithHint("Escape string must be empty or one character.")
	}
	if escape == `\` {
		return a[0], nil
	}
	var b strings.Builder
	for i := 0; i < len(pattern); {
		switch {
		case escape != "" && strings.HasPrefix(pattern[i:], escape):
			b.WriteByte('\\')
			i += len(escape)
			if i < len(pattern) {
				_, n := utf8.DecodeRuneInString(pattern[i:])
				b.WriteString(pattern[i : i+n])
				i += n
			}
		case pattern[i] == '\\':
			b.WriteString(`\\`)
			i++
		default:
			b.WriteByte(pattern[i])
			i++
		}
	}
	return datum.Text(b.String()), nil
}

func regexBuiltin(fold, negate bool) Builtin {
	return func(c Call, a []datum.Datum) (datum.Datum, error) {
		re, err := c.run.regex(a[1].Text(), fold)
		if err != nil {
			return datum.Null, err
		}
		return datum.Bool(re.MatchString(a[0].Text()) != negate), nil
	}
}

// regex compiles a pattern once for a run.
func (r *run) regex(pattern string, fold bool) (*regexp.Regexp, error) {
	key := pattern
	if fold {
		key = "(?i)" + pattern
	}
	if re := r.regexes[key]; re != nil {
		return re, nil
	}
	if err := checkRegex(pattern); err != nil {
		return nil, err
	}
	flags := "(?s)"
	if fold {
		flags = "(?si)"
	}
	re, err := regexp.Compile(flags + pattern)
	if err != nil {
		return nil, pgerr.New("2201B", "invalid regular expression: %s", regexFault(err))
	}
	if r.regexes == nil || len(r.regexes) > 64 {
		r.regexes = map[string]*regexp.Regexp{}
	}
	r.regexes[key] = re
	return re, nil
}

// regexFault says what is wrong in the server's words.
func regexFault(err error) string {
	var e *syntax.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	switch e.Code {
	case syntax.ErrMissingParen, syntax.ErrUnexpectedParen:
		return "parentheses () not balanced"
	case syntax.ErrMissingBracket:
		return "brackets [] not balanced"
	case syntax.ErrMissingRepeatArgument, syntax.ErrInvalidRepeatOp:
		return "quantifier operand invalid"
	case syntax.ErrInvalidRepeatSize:
		return "invalid repetition count(s)"
	}
	return e.Code.String()
}

func errRegex(what string) error {
	return pgerr.New(pgerr.FeatureNotSupported, "%s in a regular expression is not supported here", what)
}

// checkRegex lets pass what Postgres's advanced regular expressions and Go's mean alike when it is only asked whether
// there is a match.
func checkRegex(p string) error {
	if strings.HasPrefix(p, "***") {
		return errRegex("a director (***)")
	}
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
			if i < len(p) && isAlnum(p[i]) && !strings.ContainsRune("dswDSWnrtf", rune(p[i])) {
				return errRegex(`escape \` + string(p[i]))
			}
		case '(':
			if strings.HasPrefix(p[i:], "(?") && !strings.HasPrefix(p[i:], "(?:") {
				return errRegex("(? other than (?:")
			}
		case '{':
			if end := strings.IndexByte(p[i:], '}'); end < 2 || strings.Trim(p[i+1:i+end], "0123456789,") != "" {
				return errRegex("a { that begins no bound")
			}
		case '[':
			end, err := checkBracket(p[i:])
			if err != nil {
				return err
			}
			i += end
		}
	}
	return nil
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// checkBracket gives the offset of the closing bracket.
func checkBracket(p string) (int, error) {
	i := 1
	if strings.HasPrefix(p[i:], "^") {
		i++
	}
	if strings.HasPrefix(p[i:], "]") {
		i++
	}
	for ; i < len(p); i++ {
		switch {
		case p[i] == ']':
			return i, nil
		case p[i] == '\\':
			return 0, errRegex("a backslash between brackets")
		case strings.HasPrefix(p[i:], "[:"):
			end := strings.Index(p[i:], ":]")
			if end < 0 {
				return 0, pgerr.New("2201B", "invalid regular expression: brackets [] not balanced")
			}
			i += end + 1
		case p[i] == '[':
			return 0, errRegex("a [ between brackets")
		}
	}
	return 0, pgerr.New("2201B", "invalid regular expression: brackets [] not balanced")
}

var patternBuiltins = map[string]Builtin{
	"textlike": likeBuiltin(false, false), "textnlike": likeBuiltin(false, true),
	"namelike": likeBuiltin(false, false), "namenlike": likeBuiltin(false, true),
	"texticlike": likeBuiltin(true, false), "texticnlike": likeBuiltin(true, true),
	"nameiclike": likeBuiltin(true, false), "nameicnlike": likeBuiltin(true, true),
	"like_escape":   likeEscape,
	"textregexeq":   regexBuiltin(false, false),
	"textregexne":   regexBuiltin(false, true),
	"texticregexeq": regexBuiltin(true, false),
	"texticregexne": regexBuiltin(true, true),
	"nameregexeq":   regexBuiltin(false, false),
	"nameregexne":   regexBuiltin(false, true),
	"nameicregexeq": regexBuiltin(true, false),
	"nameicregexne": regexBuiltin(true, true),
}
