package settings

import (
	"strings"

	"neki/internal/pgerr"
)

// ParseOptions reads the startup packet's options as Postgres does: words separated by blanks, a backslash keeps the
// next character as it is, then the switches of a server process. -c name=value and --name=value set a parameter (in
// the name, hyphens become underscores); the few one-letter switches that stand for parameters do too. Anything else
// is 42601.
func ParseOptions(s string) ([]Pair, error) {
	args := splitOptions(s)
	var pairs []Pair
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" { // the end of the switches: nothing may follow
			if i+1 < len(args) {
				return nil, badSwitch(args[i+1])
			}
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			return nil, badSwitch(arg)
		}
		used, found, err := parseSwitches(arg[1:], args[i+1:])
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, found...)
		if used {
			i++
		}
	}
	return pairs, nil
}

// splitOptions is pg_split_opts.
func splitOptions(s string) []string {
	var args []string
	var word strings.Builder
	for i := 0; i < len(s); {
		for i < len(s) && isSpace(s[i]) {
			i++
		}
		if i == len(s) {
			break
		}
		word.Reset()
		for ; i < len(s) && !isSpace(s[i]); i++ {
			if s[i] == '\\' {
				if i++; i == len(s) {
					break
				}
			}
			word.WriteByte(s[i])
		}
		args = append(args, word.String())
	}
	return args
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// switchKind says what a one-letter switch takes and means.
type switchKind struct {
	argument bool
	pairs    func(argument string) []Pair // nil result: the argument is bad
}

// parseSwitches reads one word of switches, letter by letter as getopt does; next are the words after it, and used
// tells that the first of them was taken as an argument.
func parseSwitches(word string, next []string) (used bool, pairs []Pair, err error) {
	for i := range len(word) {
		kind, ok := serverSwitches[word[i]]
		if !ok {
			return false, nil, badSwitch("-" + word)
		}
		argument := ""
		if kind.argument {
			argument = word[i+1:]
			if argument == "" {
				if len(next) == 0 {
					return false, nil, badSwitch("-" + word)
				}
				argument, used = next[0], true
			}
		}
		if c := word[i]; c == 'c' || c == '-' {
			p, err := longOption(c, argument)
			return used, append(pairs, p), err
		}
		found := kind.pairs(argument)
		if found == nil {
			return false, nil, badSwitch("-" + word)
		}
		pairs = append(pairs, found...)
		if kind.argument {
			break
		}
	}
	return used, pairs, nil
}

func longOption(letter byte, argument string) (Pair, error) {
	name, value, ok := strings.Cut(argument, "=")
	if !ok {
		dash := "-c "
		if letter == '-' {
			dash = "--"
		}
		return Pair{}, pgerr.Fatal(pgerr.SyntaxError, "%s%s requires a value", dash, argument)
	}
	return Pair{strings.ReplaceAll(name, "-", "_"), value}, nil
}

func badSwitch(arg string) error {
	return pgerr.Fatal(pgerr.SyntaxError, "invalid command-line argument for server process: %s", arg).
		WithHint("Try \"postgres --help\" for more information.")
}

// withValue makes a switch whose argument is the value of name; fixed one that sets name to a fixed value.
func withValue(name string) switchKind {
	return switchKind{true, func(a string) []Pair { return []Pair{{name, a}} }}
}

func fixed(name, value string) switchKind {
	return switchKind{false, func(string) []Pair { return []Pair{{name, value}} }}
}

// byWord makes a switch whose argument picks the parameter.
func byWord(value string, names map[string]string) switchKind {
	return switchKind{true, func(a string) []Pair {
		if name, ok := names[a]; ok {
			return []Pair{{name, value}}
		}
		return nil
	}}
}

// serverSwitches are those of process_postgres_switches that set parameters. Whether a client may set the parameter is
// for the server to say.
var serverSwitches = map[byte]switchKind{
	'c': {argument: true}, '-': {argument: true},
	'B': withValue("shared_buffers"), 'h': withValue("listen_addresses"), 'k': withValue("unix_socket_directories"),
	'N': withValue("max_connections"), 'p': withValue("port"), 'S': withValue("work_mem"), 'W': withValue("post_auth_delay"),
	'd': {true, debugLevel},
	'e': fixed("datestyle", "euro"), 'F': fixed("fsync", "false"), 'i': fixed("listen_addresses", "*"),
	'l': fixed("ssl", "true"), 'O': fixed("allow_system_table_mods", "true"),
	'P': fixed("ignore_system_indexes", "true"), 's': fixed("log_statement_stats", "true"),
	't': byWord("true", map[string]string{
		"pa": "log_parser_stats", "parser": "log_parser_stats", "pl": "log_planner_stats",
		"planner": "log_planner_stats", "e": "log_executor_stats", "executor": "log_executor_stats",
	}),
	'f': byWord("false", map[string]string{
		"s": "enable_seqscan", "i": "enable_indexscan", "o": "enable_indexonlyscan", "b": "enable_bitmapscan",
		"t": "enable_tidscan", "n": "enable_nestloop", "m": "enable_mergejoin", "h": "enable_hashjoin",
	}),
}

// debugLevel is set_debug_options as it works for a client's -d.
func debugLevel(argument string) []Pair {
	if argument == "0" {
		return []Pair{{"log_min_messages", "notice"}}
	}
	if len(argument) != 1 || argument[0] < '1' || argument[0] > '5' {
		return nil
	}
	pairs := []Pair{
		{"log_min_messages", "debug" + argument},
		{"log_statement", "all"},
		{"debug_print_parse", "true"},
		{"debug_print_plan", "true"},
		{"debug_print_rewritten", "true"},
	}
	return pairs[:argument[0]-'0']
}
