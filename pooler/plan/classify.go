package plan

import (
	"fmt"
	"slices"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// maker holds what the plan of one statement is made from.
type maker struct {
	virtual VirtualSchema
	snap    *catalog.Snapshot
	env     *Env
	planner *Planner
	shape   *sqlparse.Shape // nil: literals are constants to the plan, which is then for this text only
	spreads bool            // the statement is known to come to several shards
}

// make parses and plans one statement that was not in the cache. text is the original, sh its shape.
func (pl *Planner) make(text string, sh sqlparse.Shape, snap *catalog.Snapshot, env *Env, spreads bool) (*Plan, error) {
	lifted := string(sh.Text)
	st, err := sqlparse.Parse(text)
	if err != nil {
		p := unparsable(text, snap, err)
		p.Query, p.ByText = shown(text), true
		p.keep(text, lifted)
		return p, nil
	}
	m := maker{virtual: pl.virtual, snap: snap, env: env, planner: pl, shape: &sh, spreads: spreads}
	p, err := m.plan(st)
	if err != nil {
		return nil, err
	}
	p.Query = shown(text)
	if p.Secret = secret(p.Tag); p.Secret {
		p.Query = p.Tag + " ..."
	}
	if f, err := sqlparse.Fingerprint(text); err == nil && st.Kind != sqlparse.KindEmpty {
		p.Fingerprint = fmt.Sprintf("%016x", f)
	}
	// A shape does not tell where something stands in the text.
	p.ByText = spreads || p.Spread != nil && !p.Spread.plain() || p.Explain != nil || p.Inner != nil || len(sh.Literals) > 0 && p.dependsOnLiterals(st)
	p.keep(text, lifted)
	return p, nil
}

// keep sets what the cache needs to know.
func (p *Plan) keep(text, lifted string) {
	p.key = lifted
	if p.ByText {
		p.key = text
	}
	p.bytes = sizeOf(p)
}

// maxShown bounds the texts in neki.plans and neki.statements, in bytes.
const maxShown = 4096

// shown is what people get to see of a statement: no constants, which may be private and make every text another one.
func shown(text string) string {
	s := sqlparse.Normalize(text)
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + " ..."
	}
	return s
}

// secret reports whether statements of the tag may hold passwords, which must not be shown anywhere.
func secret(tag string) bool {
	switch tag {
	case "CREATE ROLE", "ALTER ROLE", "CREATE USER", "ALTER USER", "CREATE USER MAPPING", "ALTER USER MAPPING",
		"CREATE SUBSCRIPTION", "ALTER SUBSCRIPTION", "CREATE SERVER", "ALTER SERVER", "ALTER SYSTEM":
		return true
	}
	return false
}

// unparsable is the plan of a text of which nothing is known: the server sees it as it is, on the primary (or on the
// standby that the session asked for, which refuses writes by itself), and the connection is not trusted afterwards.
func unparsable(text string, snap *catalog.Snapshot, cause error) *Plan {
	p := &Plan{
		Kind: sqlparse.KindOther, Tag: "statement", Route: Route{Kind: RouteOne, Shard: homeShard(snap)},
		Verdict: Unproven, Why: "the text does not parse", Pins: PinOpaque, ParseError: cause,
		ChangesFunctions: mayChangeFunctions(text), shardRefused: "a statement that does not parse",
	}
	p.bytes = sizeOf(p)
	return p
}

// homeShard gives the uid of the shard that holds all unsharded data; "" while no shard is known.
func homeShard(snap *catalog.Snapshot) string {
	if s := snap.Authoritative(); s != nil {
		return s.UID
	}
	return ""
}

// plan makes the plan of a parsed statement. Query, Fingerprint and the rest that only the text tells are the caller's.
func (m maker) plan(st *sqlparse.Statement) (*Plan, error) {
	if err := checkSettings(st); err != nil {
		return nil, err
	}
	p := &Plan{
		Kind: st.Kind, Tag: st.Tag, Effects: st.Effects, Pins: pinsOf(st), Tables: tablesOf(st),
		Set: st.Set, SetConfigs: st.SetConfigs, Show: st.Show, Tx: st.Tx, Discard: st.Discard, Channel: st.Channel,
		Route: Route{Kind: RouteOne, Shard: homeShard(m.snap)}, ChangesFunctions: changesFunctions(st),
		ChangesDefaults: changesDefaults(st), shardRefused: refusedWithShard(st),
		Runs: runsOf(st), ShowsPrepared: showsPrepared(st),
	}
	p.withoutTree(st)
	handled, err := m.virtualPlan(p, st)
	if err != nil || handled {
		return p, err
	}
	m.judge(p, st)
	if err := m.inner(p, st); err != nil {
		return nil, err
	}
	switch {
	case p.Route.Kind == RouteLocal || p.Route.Kind == RouteControl:
		p.Route.Shard = ""
	case p.Verdict == Read && len(st.Relations) == 0 && len(st.Functions) == 0: // a function may read a table
		p.Route.Kind = RouteAny
	}
	switch {
	case p.Route.Kind != RouteOne || p.Explain != nil:
	case st.Kind == sqlparse.KindCopy:
		err = m.shardCopy(p, st)
	case st.Kind == sqlparse.KindDeclare:
		err = m.shardCursor(p, st)
	default:
		err = m.shard(p, st)
	}
	return p, err
}

// inner plans the statement inside EXPLAIN and PREPARE.
func (m maker) inner(p *Plan, st *sqlparse.Statement) error {
	var err error
	switch {
	case st.Explain != nil && st.Explain.Query != nil:
		p.Explain, err = m.explain(p, st)
		if err == nil && !p.Explain.Neki {
			err = p.explainOneRoute()
		}
	case st.Kind == sqlparse.KindPrepare && st.Prepared.Query != nil:
		p.Inner, err = m.inside().plan(st.Prepared.Query)
		if err == nil && !p.Inner.Route.Backend() {
			p.Route.Kind, p.Pins = RouteLocal, 0
		}
	}
	return err
}

// withoutTree copies what holds nodes of the parse tree, so that a cached plan does not hold the tree.
func (p *Plan) withoutTree(st *sqlparse.Statement) {
	if st.Copy != nil {
		dup := *st.Copy
		dup.Query = bare(dup.Query)
		p.Copy = &dup
	}
	if st.Prepared != nil {
		dup := *st.Prepared
		dup.Query, dup.Values = bare(dup.Query), nil
		p.Prepared = &dup
	}
	if st.Cursor != nil {
		dup := *st.Cursor
		dup.Query = bare(dup.Query)
		p.Cursor = &dup
	}
}

func bare(st *sqlparse.Statement) *sqlparse.Statement {
	if st == nil {
		return nil
	}
	return &sqlparse.Statement{Kind: st.Kind, Text: st.Text, Tag: st.Tag, Effects: st.Effects, Params: st.Params}
}

func tablesOf(st *sqlparse.Statement) []string {
	var out []string
	seen := make(map[string]bool, len(st.Relations))
	for _, r := range st.Relations {
		if name := r.String(); !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

// pinCauses maps effects to the pins that they cause.
var pinCauses = []struct {
	effect sqlparse.Effects
	pin    Pins
}{
	{sqlparse.EffectTempObject, PinTempObject},
	{sqlparse.EffectAdvisoryLock, PinAdvisoryLock},
	{sqlparse.EffectListen, PinListen},
	{sqlparse.EffectHoldCursor, PinHoldCursor},
	{sqlparse.EffectLoadLibrary, PinLoad},
	{sqlparse.EffectSetSeed, PinSetSeed},
}

func pinsOf(st *sqlparse.Statement) Pins {
	var pins Pins
	for _, c := range pinCauses {
		if st.Effects.Any(c.effect) {
			pins |= c.pin
		}
	}
	switch st.Kind {
	case sqlparse.KindPrepare:
		return 0 // nothing happens yet
	case sqlparse.KindDo, sqlparse.KindCall:
		pins |= PinOpaque
	}
	for _, f := range st.Functions {
		if (f.Name == "currval" || f.Name == "lastval") && (f.Schema == "" || f.Schema == systemSchema) {
			pins |= PinSequence
		}
	}
	for _, c := range st.SetConfigs {
		if !c.Constant { // a setting nobody can name has changed
			pins |= PinOpaque
		}
	}
	return pins
}

// changesFunctions reports whether volatilities may differ after the statement. What DO, CALL and other tools of indirect
// change do is found by the next Refresh; until then a standby refuses what a changed function writes.
func changesFunctions(st *sqlparse.Statement) bool {
	if st.Kind != sqlparse.KindDDL {
		return false
	}
	for _, what := range []string{"FUNCTION", "PROCEDURE", "ROUTINE", "AGGREGATE", "EXTENSION", "SCHEMA", "OWNED"} {
		if strings.HasSuffix(st.Tag, what) {
			return true
		}
	}
	return false
}

// changesDefaults reports whether sessions that begin after the statement have other settings.
func changesDefaults(st *sqlparse.Statement) bool {
	changes := false
	if st.Kind == sqlparse.KindDDL && (st.Tag == "ALTER ROLE" || st.Tag == "ALTER DATABASE") {
		sqlparse.Walk(st.Tree, func(node any) bool {
			switch node.(type) {
			case *sqlparse.AlterRoleSetStmt, *sqlparse.AlterDatabaseSetStmt:
				changes = true
				return false
			}
			return !changes
		})
	}
	return changes
}

// mayChangeFunctions is changesFunctions for a text that does not parse.
func mayChangeFunctions(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "function") || strings.Contains(text, "procedure")
}

// gatewayRun lists the functions that are run by the gateway when data is sharded.
var gatewayRun = []string{"current_setting", "nextval", "set_config"} // sorted

// refusedWithShard says what can't run while __neki.shard is set; "" = it can.
func refusedWithShard(st *sqlparse.Statement) string {
	switch st.Kind {
	case sqlparse.KindDDL, sqlparse.KindCopy, sqlparse.KindDo:
		return st.Tag
	}
	for _, f := range st.Functions {
		if (f.Schema == "" || f.Schema == systemSchema) && contains(gatewayRun, f.Name) {
			return f.Name + "()"
		}
	}
	return ""
}

// dependsOnLiterals reports whether the plan would be another one under other literals.
func (p *Plan) dependsOnLiterals(st *sqlparse.Statement) bool {
	switch st.Kind {
	case sqlparse.KindSelect, sqlparse.KindInsert, sqlparse.KindUpdate, sqlparse.KindDelete, sqlparse.KindMerge:
	default:
		return true
	}
	if p.Route.Kind == RouteVirtual || len(p.SetConfigs) > 0 {
		return true
	}
	for _, f := range st.Functions {
		if f.Name == currentSetting {
			return true
		}
	}
	return false
}

// CheckParameter refuses the values of Postgres's parameters under which the gateway would read another text than the
// server, or acknowledge what is not durable, in SET as well as at startup.
func CheckParameter(name, value string) *pgerr.Error {
	switch strings.ToLower(name) {
	case "standard_conforming_strings":
		if on, known := parseBool(value); known && !on {
			return pgerr.New(pgerr.FeatureNotSupported, "standard_conforming_strings must be on").
				WithHint(`Write backslash escapes as E'...'.`)
		}
	case "synchronous_commit":
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "on", "remote_apply", "default":
		default:
			if on, known := parseBool(value); known && on {
				break
			}
			return pgerr.New(pgerr.FeatureNotSupported, "synchronous_commit can't be lower than on").
				WithDetail("A commit that no replica has acknowledged is lost when its primary is.").
				WithHint("What a shard's commits wait for is its durability: see neki.shards.")
		}
	case "client_encoding":
		switch strings.ReplaceAll(strings.ToUpper(strings.ReplaceAll(value, "_", "")), "-", "") {
		case "SJIS", "MSKANJI", "SHIFTJIS", "WIN932", "WINDOWS932", "SHIFTJIS2004", "SJIS2004", "BIG5", "WIN950",
			"WINDOWS950", "GBK", "WIN936", "WINDOWS936", "UHC", "WIN949", "WINDOWS949", "GB18030", "JOHAB":
			return pgerr.New(pgerr.FeatureNotSupported, "client_encoding %q is not supported", value).
				WithDetail("Its characters may hold bytes that look like quotes and backslashes.").
				WithHint("Use UTF8.")
		}
	}
	return nil
}

func parseBool(value string) (on, known bool) {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "on", "true", "yes", "1", "t", "y", "tr", "tru", "ye":
		return true, true
	case "off", "false", "no", "0", "f", "n", "of", "fa", "fal", "fals":
		return false, true
	}
	return false, false
}

// agentOwned are the parameters by which the agents keep a shard's servers together.
var agentOwned = []string{ // sorted
	"cluster_name", "full_page_writes", "hba_file", "hot_standby", "listen_addresses", "port", "primary_conninfo",
	"primary_slot_name", "recovery_target_timeline", "restart_after_crash", "restore_command", "synchronous_standby_names",
	"unix_socket_directories", "wal_level", "wal_log_hints",
}

func checkSettings(st *sqlparse.Statement) error {
	if st.Kind == sqlparse.KindDDL || st.Kind == sqlparse.KindOther {
		for _, s := range st.SettingsWithin() {
			if _, owned := slices.BinarySearch(agentOwned, s.Name); owned && st.Tag == "ALTER SYSTEM" {
				return pgerr.New(pgerr.FeatureNotSupported, "parameter \"%s\" is set by neki", s.Name).
					WithHint("What a shard's commits wait for, and where its replicas stream from, follows from its durability and its primary.")
			}
			if s.Default || s.All || s.Current {
				continue
			}
			if err := CheckParameter(s.Name, s.Value); err != nil {
				return err
			}
		}
	}
	if s := st.Set; s != nil && !s.Default {
		if err := CheckParameter(s.Name, s.Value); err != nil {
			return err
		}
	}
	for _, c := range st.SetConfigs {
		if err := CheckParameter(c.Name, c.Value); err != nil {
			return err
		}
	}
	return nil
}
