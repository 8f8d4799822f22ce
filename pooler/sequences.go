package pooler

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
	"neki/sqlparse"
)

// takeValues takes values of sequences for their places in a row: neighbours of one sequence at once.
func (s *spread) takeValues(row [][]byte, takes []plan.EvalSequence, snap *catalog.Snapshot) error {
	c := s.c
	for i, q := range takes {
		if row[q.At] != nil {
			continue
		}
		var places []int
		for _, other := range takes[i:] {
			if other.Name == q.Name {
				places = append(places, other.At)
			}
		}
		values, err := s.takeSequence(q.Name, q.Shard, len(places), snap)
		if err != nil {
			return err
		}
		for j, at := range places {
			row[at] = strconv.AppendInt(nil, values[j], 10)
			c.given.gave(SequenceName{c.db.name, q.Name.Schema, q.Name.Name}, values[j])
		}
	}
	return nil
}

// takeSequence takes n values of a sequence.
func (s *spread) takeSequence(q plan.Relation, shard string, n int, snap *catalog.Snapshot) ([]int64, error) {
	c := s.c
	name := SequenceName{c.db.name, q.Schema, q.Name}
	return c.srv.sequences.Append(s.ctx, nil, sequenceUse{name, c.planUser()}, snap.SchemaRev, n,
		func(_ context.Context, name SequenceName, n int) ([]int64, error) {
			s.calls++
			return c.fetchSequence(name, shard, n, snap)
		})
}

// fetchSequence reserves values on the shard that has the sequence: on the transaction's connection there, if it has one,
// or else on one of its own, for the transaction need not go there. What that connection remembers of it would be a wrong
// answer to currval.
func (c *Session) fetchSequence(name SequenceName, shard string, n int, snap *catalog.Snapshot) ([]int64, error) {
	if c.stx != nil {
		if m := c.stx.find(shard); m != nil {
			return c.fetchOn(m.sc, sequenceSQL(name, n))
		}
		c.park()
	}
	if err := c.acquireFit(catalog.RolePrimary, shard, snap, 0); err != nil {
		return nil, err
	}
	sc := c.lease
	values, err := c.fetchOn(sc, sequenceSQL(name, n)+"; DISCARD SEQUENCES")
	c.lease = nil
	if sc != c.home {
		c.letGo(sc)
	}
	return values, err
}

func (c *Session) fetchOn(sc *backend.ServerConn, sql string) ([]int64, error) {
	rows, err := sc.Exec(sql, c.work.answers)
	if err != nil {
		return nil, err
	}
	values := make([]int64, len(rows))
	for i, row := range rows {
		if values[i], err = strconv.ParseInt(row[0], 10, 64); err != nil {
			return nil, pgerr.New(pgerr.InternalError, "a sequence gave %q", row[0])
		}
	}
	return values, nil
}

var errSequenceState = pgerr.New(pgerr.NotImplemented,
	"not implemented: [127] currval or lastval of a value that the gateway has handed out, but in a simple query of its own").
	WithHint("INSERT ... RETURNING gives the value.")

// refuseSequenceState refuses a statement that asks a server for what the gateway has handed out itself.
func (c *Session) refuseSequenceState(p *plan.Plan) *pgerr.Error {
	if p == nil || p.Pins&plan.PinSequence == 0 || len(c.given.current) == 0 {
		return nil
	}
	return errSequenceState
}

// asksSequenceState reports whether a string calls currval or lastval when the gateway may have the answer.
func (c *Session) asksSequenceState(parts []plan.Part) bool {
	asks, gives := false, len(c.given.current) > 0
	for i := range parts {
		p := parts[i].Plan
		asks = asks || p.Pins&plan.PinSequence != 0
		gives = gives || p.Spread != nil && p.Spread.Eval != nil && len(p.Spread.Eval.Sequences) > 0
	}
	return asks && gives
}

// withSequenceState gives text with the calls of currval and lastval that the gateway can answer replaced by their values;
// "" when there are none.
func (c *Session) withSequenceState(text []byte, parts []plan.Part) (string, error) {
	if len(parts) != 1 {
		return "", errSequenceState
	}
	st, err := sqlparse.Parse(string(text))
	if err != nil || st.Tree == nil {
		return "", nil //nolint:nilerr // the server says so
	}
	table, err := c.db.relations.Table()
	if err != nil {
		return "", err
	}
	root := st.Tree.Stmts[0].Stmt
	sqlparse.Walk(root, func(node any) bool {
		if t, ok := node.(*sqlparse.ResTarget); ok && t.Name == "" {
			t.Name = c.sequenceColumn(t.Val)
		}
		return true
	})
	replaced, unclear := false, false
	sqlparse.Rewrite(root, func(n *sqlparse.Node) *sqlparse.Node {
		if n.GetFuncCall() == nil || c.sequenceColumn(n) == "" {
			return nil
		}
		value, ok, known := c.sequenceCall(n.GetFuncCall(), table)
		unclear = unclear || !known
		if !ok {
			return nil
		}
		replaced = true
		return int8Node(value)
	})
	switch {
	case unclear:
		return "", errSequenceState
	case !replaced:
		return "", nil
	}
	return sqlparse.DeparseNode(root)
}

// sequenceColumn gives the name of a column that a call of currval or lastval makes; "" for others.
func (c *Session) sequenceColumn(n *sqlparse.Node) string {
	for n.GetTypeCast() != nil {
		n = n.GetTypeCast().Arg
	}
	names := n.GetFuncCall().GetFuncname()
	if len(names) == 0 {
		return ""
	}
	switch name := names[len(names)-1].GetString_().GetSval(); name {
	case "currval", "lastval":
		return name
	}
	return ""
}

// sequenceCall answers a call of currval or lastval. known is false when it can't be told whether the gateway has the answer.
func (c *Session) sequenceCall(f *sqlparse.FuncCall, table *plan.RelTable) (value int64, ok, known bool) {
	var err error
	if len(f.Args) == 0 {
		value, err = c.given.lastval()
		return value, err == nil, true
	}
	name, found := c.sequenceNamed(f.Args[0], table)
	if !found {
		return 0, false, false
	}
	value, err = c.given.currval(name)
	return value, err == nil, true
}

// sequenceNamed finds the sequence that an argument of currval means: a constant, or pg_get_serial_sequence of constants.
func (c *Session) sequenceNamed(arg *sqlparse.Node, table *plan.RelTable) (SequenceName, bool) {
	for arg.GetTypeCast() != nil {
		arg = arg.GetTypeCast().Arg
	}
	var found plan.Relation
	if f := arg.GetFuncCall(); f != nil {
		if len(f.Args) != 2 || f.Funcname[len(f.Funcname)-1].GetString_().GetSval() != "pg_get_serial_sequence" {
			return SequenceName{}, false
		}
		rel := c.relNamed(f.Args[0].GetAConst().GetSval().GetSval(), table)
		if rel == nil || rel.Column(f.Args[1].GetAConst().GetSval().GetSval()) == nil {
			return SequenceName{}, false
		}
		found = rel.Column(f.Args[1].GetAConst().GetSval().GetSval()).Sequence
	} else if rel := c.relNamed(arg.GetAConst().GetSval().GetSval(), table); rel != nil {
		found = plan.Relation{Schema: rel.Schema, Name: rel.Name}
	}
	return SequenceName{c.db.name, found.Schema, found.Name}, found != plan.Relation{}
}

// relNamed finds a relation by its name as regclass reads it; nil also for what can't be read here.
func (c *Session) relNamed(text string, table *plan.RelTable) *plan.Rel {
	st, err := sqlparse.Parse("TABLE " + text)
	if err != nil || st.Tree == nil || len(st.Tree.Stmts) != 1 {
		return nil
	}
	from := st.Tree.Stmts[0].Stmt.GetSelectStmt().GetFromClause()
	if len(from) != 1 || from[0].GetRangeVar() == nil {
		return nil
	}
	name := from[0].GetRangeVar()
	return table.Rel(name.Schemaname, name.Relname, c.planEnv().SearchPath())
}

// int8Node gives a constant.
func int8Node(value int64) *sqlparse.Node {
	st, err := sqlparse.Parse(fmt.Sprintf("SELECT '%d'::pg_catalog.int8", value))
	if err != nil {
		return nil
	}
	return st.Tree.Stmts[0].Stmt.GetSelectStmt().TargetList[0].GetResTarget().Val
}

// mayDraw reports whether a statement may draw a value from a sequence, which the connection then remembers: by a default or
// in a function, too.
func mayDraw(p *plan.Plan) bool {
	switch p.Kind {
	case sqlparse.KindShow, sqlparse.KindSet, sqlparse.KindReset, sqlparse.KindDiscard, sqlparse.KindPrepare, sqlparse.KindDeallocate,
		sqlparse.KindListen, sqlparse.KindUnlisten, sqlparse.KindNotify:
		return false
	}
	return !p.Proven() && !p.Kind.IsTransaction()
}

// followSequences notes what a statement that a server has completed means for the values that the gateway hands out.
func (c *Session) followSequences(p *plan.Plan) {
	draws := p.Effects.Any(sqlparse.EffectSequence) && p.Pins&plan.PinSequence == 0
	if draws && strings.Contains(strings.ToLower(p.Query), "setval") {
		c.srv.sequences.ForgetAll(c.db.name)
	}
	switch {
	case draws:
		c.given.discard() // the server knows better
	case p.Spread == nil && (p.Kind == sqlparse.KindInsert || p.Kind == sqlparse.KindCall || p.Kind == sqlparse.KindDo):
		c.given.any = false
	}
}
