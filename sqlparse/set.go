package sqlparse

import (
	"strconv"
	"strings"

	pg_query "github.com/pganalyze/pg_query_go/v5"
)

// newSetStmt reads a SET or RESET.
func newSetStmt(n *pg_query.VariableSetStmt) *SetStmt {
	s := &SetStmt{Name: strings.ToLower(n.Name), Local: n.IsLocal}
	switch n.Kind {
	case pg_query.VariableSetKind_VAR_SET_DEFAULT, pg_query.VariableSetKind_VAR_RESET:
		s.Default = true
	case pg_query.VariableSetKind_VAR_RESET_ALL:
		s.Name, s.All, s.Default = "", true, true
	case pg_query.VariableSetKind_VAR_SET_CURRENT:
		s.Current = true
	case pg_query.VariableSetKind_VAR_SET_MULTI:
		s.multi(n)
	default:
		s.values(n.Args)
	}
	if IsTransactionSetting(s.Name) {
		s.Special = SpecialTransaction
		s.Tx = s.txMode()
	}
	return s
}

// SettingsWithin gives the settings that a statement has others use: ALTER SYSTEM, ALTER ROLE and DATABASE SET, and the SET
// clauses of functions.
func (s *Statement) SettingsWithin() (list []*SetStmt) {
	Walk(s.Tree, func(node any) bool {
		if n, ok := node.(*pg_query.VariableSetStmt); ok {
			list = append(list, newSetStmt(n))
		}
		return true
	})
	return list
}

// IsTransactionSetting reports whether a setting, in lower case, is one of the running transaction only: SET and
// set_config of it is a SET TRANSACTION, whatever they say of LOCAL, and leaves nothing in the session.
func IsTransactionSetting(name string) bool {
	return name == "transaction_isolation" || name == "transaction_read_only" || name == "transaction_deferrable"
}

// txMode reads a plain SET of a transaction's setting. A value that is not understood is left for the server to judge.
func (s *SetStmt) txMode() *TxStmt {
	tx := &TxStmt{}
	if s.Default {
		return tx
	}
	on := boolOption(s.Value)
	switch s.Name {
	case "transaction_isolation":
		tx.Isolation = strings.ToLower(s.Value)
	case "transaction_read_only":
		tx.ReadOnly = &on
	case "transaction_deferrable":
		tx.Deferrable = &on
	}
	return tx
}

// multi reads the forms with a grammar of their own.
func (s *SetStmt) multi(n *pg_query.VariableSetStmt) {
	s.Name = ""
	switch n.Name {
	case "TRANSACTION":
		s.Special, s.Tx = SpecialTransaction, newTxModes(n.Args)
	case "SESSION CHARACTERISTICS":
		s.Special, s.Tx = SpecialCharacteristics, newTxModes(n.Args)
	case "TRANSACTION SNAPSHOT":
		s.Special = SpecialSnapshot
		if len(n.Args) == 1 {
			s.Snapshot = n.Args[0].GetAConst().GetSval().GetSval()
		}
	}
}

// values flattens the arguments as Postgres's flatten_set_variable_args does.
func (s *SetStmt) values(args []*Node) {
	quote := quotedLists[s.Name]
	var flat []string
	for _, a := range args {
		arg := newSetArg(a)
		s.Args = append(s.Args, arg)
		if arg.Kind == SetArgString && quote {
			flat = append(flat, QuoteIdent(arg.Text))
		} else {
			flat = append(flat, arg.Text)
		}
	}
	s.Value = strings.Join(flat, ", ")
}

// quotedLists names the settings marked GUC_LIST_QUOTE: their elements are quoted like identifiers.
var quotedLists = map[string]bool{
	"search_path": true, "temp_tablespaces": true, "session_preload_libraries": true,
	"shared_preload_libraries": true, "local_preload_libraries": true, "unix_socket_directories": true,
}

// lists names the other settings marked GUC_LIST_INPUT, which take several values.
var lists = map[string]bool{
	"datestyle": true, "log_destination": true, "listen_addresses": true, "synchronous_standby_names": true,
	"wal_consistency_checking": true, "debug_io_direct": true, "createrole_self_grant": true,
	"restrict_nonsystem_relation_kind": true, "synchronized_standby_slots": true, "oauth_validator_libraries": true,
	"plpgsql.extra_warnings": true, "plpgsql.extra_errors": true, "log_connections": true,
}

// OneValueOnly reports whether several values were given to a setting that takes one: Postgres answers 22023
// "SET name takes only one argument".
func (s *SetStmt) OneValueOnly() bool {
	return len(s.Args) > 1 && !quotedLists[s.Name] && !lists[s.Name]
}

func newSetArg(n *Node) SetArg {
	if cast := n.GetTypeCast(); cast != nil {
		return SetArg{Kind: SetArgInterval, Text: "INTERVAL '" + zoneInterval(cast) + "'"}
	}
	switch c := n.GetAConst(); v := c.GetVal().(type) {
	case *A_Const_Ival:
		return SetArg{Kind: SetArgInteger, Text: strconv.Itoa(int(v.Ival.GetIval()))}
	case *A_Const_Fval:
		return SetArg{Kind: SetArgFloat, Text: v.Fval.GetFval()}
	case *A_Const_Sval:
		return SetArg{Text: v.Sval.GetSval()}
	}
	return SetArg{}
}

// Bits of an interval's typmod, as in Postgres's timestamp.h.
const (
	intervalHour   = 1 << 10
	intervalMinute = 1 << 11
)

// zoneInterval gives the text of SET TIME ZONE INTERVAL '...' field, so that the server reads the same interval
// without the field: a bare number counts in the field's unit, and what is finer than the field is dropped.
func zoneInterval(cast *TypeCast) string {
	text := cast.GetArg().GetAConst().GetSval().GetSval()
	mods := cast.GetTypeName().GetTypmods()
	if len(mods) == 0 {
		return text
	}
	switch mods[0].GetAConst().GetIval().GetIval() {
	case intervalHour:
		return dropFiner(text, "hours", 1)
	case intervalHour | intervalMinute:
		return dropFiner(text, "minutes", 2)
	}
	return text
}

// dropFiner rewrites an interval of one of the forms 8, 8:30:15 and "8 hours 30 minutes" so that unit is its finest
// part; kept counts the parts of a clock time that stay. Other forms are left as they are.
func dropFiner(text, unit string, kept int) string {
	words := strings.Fields(text)
	if len(words) == 1 {
		if _, err := strconv.Atoi(text); err == nil {
			return text + " " + unit
		}
		clock := strings.Split(words[0], ":")
		if len(clock) == 1 {
			return text
		}
		clock = append(clock[:min(kept, len(clock))], "00", "00")
		return strings.Join(clock[:2], ":")
	}
	var coarse []string
	for i := 0; i+1 < len(words); i += 2 {
		if words[i+1][0] == 'h' || words[i+1][0] == 'm' && kept > 1 {
			coarse = append(coarse, words[i], words[i+1])
		}
	}
	if len(coarse) == 0 {
		return text
	}
	return strings.Join(coarse, " ")
}

// effects tells what the statement leaves in the session.
func (s *SetStmt) effects() Effects {
	switch {
	case s.Special == SpecialTransaction || s.Special == SpecialSnapshot:
		return 0 // of the running transaction only
	case s.Name == "seed":
		return EffectSessionState | EffectSetSeed
	case s.Name == "search_path" && namesTempSchema(s.Value):
		return EffectSessionState | EffectTempObject
	}
	return EffectSessionState
}

// namesTempSchema reports whether a search_path puts unqualified new objects into the temporary schema.
func namesTempSchema(path string) bool {
	return strings.Contains(strings.ToLower(path), "pg_temp")
}

// newTxModes reads transaction modes; the last of each kind counts.
func newTxModes(options []*Node) *TxStmt {
	tx := &TxStmt{}
	for _, o := range options {
		d := o.GetDefElem()
		on := d.GetArg().GetAConst().GetIval().GetIval() != 0
		switch d.GetDefname() {
		case "transaction_isolation":
			tx.Isolation = d.GetArg().GetAConst().GetSval().GetSval()
		case "transaction_read_only":
			tx.ReadOnly = &on
		case "transaction_deferrable":
			tx.Deferrable = &on
		}
	}
	return tx
}

// newSetConfig reads a call of set_config.
func newSetConfig(args []*Node) SetConfig {
	c := SetConfig{Constant: len(args) == 3}
	for i, a := range args {
		v := constantOf(a)
		if !v.ok {
			c.Constant = false
			continue
		}
		switch i {
		case 0:
			c.Name = strings.ToLower(v.text)
			c.Constant = c.Constant && v.kind == ConstString
		case 1:
			c.Value, c.Null = v.text, v.kind == ConstNull
		case 2:
			c.Local = v.kind != ConstNull && boolOption(v.text)
			c.Constant = c.Constant && (v.kind == ConstBool || v.kind == ConstString)
		}
	}
	return c
}
