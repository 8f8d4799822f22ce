package pooler

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"neki/catalog"
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
	"neki/settings"
	"neki/sqlparse"
)

// spread is one execution of a statement on several shards.
//
// A shard's connection runs one leg at a time. When the engine turns to another leg, what is left of the one that runs
// is read into memory, on the statement's budget.
type spread struct {
	c       *Session
	plan    *plan.Plan
	values  *plan.Values
	types   []uint32 // of the parameters, as far as they are known
	formats formats  // the client's, of the answer
	role    catalog.Role
	lanes   []*member // the connections, in the order of the shards' uids
	own     bool      // the lanes were leased for this statement, outside of a transaction
	budget  *exec.Budget
	session *datum.Session
	ctx     context.Context
	cancel  context.CancelFunc
	unwatch func()

	legs    []*legNode
	at      int // the one whose rows are passed on
	running *legNode
	node    exec.Node // of Spec
	columns []exec.Column
	shown   []byte // the RowDescription message, once it is known
	tags    []string
	portal  *ownPortal  // that has rows of it left to give
	writer  *copyWriter // of COPY TO
	head    []byte      // what comes before its rows
	headed  bool        // the header of the binary format was given
	rows    int64
	calls   int64
	// answered: the client may know something of the answer.
	answered bool
	closed   bool
	measured *measure // for EXPLAIN (ANALYZE), else nil

	kept   [][]byte // the answer's rows, of a change whose indexes are kept
	keptAt int
}

// spreadBudget bounds the memory of one statement over several shards.
const spreadBudget = 256 << 20

// errNotSpread is for statements whose shards turn out to be one.
var errNotSpread = errors.New("one shard")

// openSpread begins to run p on its shards. errNotSpread says that shard alone can run it.
func (c *Session) openSpread(p *plan.Plan, v *plan.Values, f formats, snap *catalog.Snapshot) (s *spread, shard string, err error) {
	if s, shard, err = c.makeSpread(p, v, f, snap); err != nil {
		return nil, shard, err
	}
	s.begin()
	if err := s.prepare(snap); err != nil {
		again := s.again(err)
		s.close()
		if again {
			return c.openSpread(p, v, f, c.srv.cfg.Cluster.Snapshot())
		}
		return nil, "", err
	}
	return s, "", nil
}

// makeSpread makes the run of p on its shards, which begin starts.
func (c *Session) makeSpread(p *plan.Plan, v *plan.Values, f formats, snap *catalog.Snapshot) (s *spread, shard string, err error) {
	lookups := p.Lookups()
	if err := c.lookUp(p, lookups, v, snap); err != nil {
		return nil, "", err
	}
	shards, err := p.Shards(nil, v)
	if err != nil {
		return nil, "", err
	}
	switch {
	case p.Spread == nil && len(shards) == 1 && len(lookups) == 0:
		return nil, shards[0], errNotSpread
	case p.Pins != 0:
		return nil, "", plan.RefuseState(p.Pins)
	case p.Spread != nil:
	case len(shards) == 1:
		p = p.AsSpread()
	default:
		whole, err := c.srv.planner.Spread(p, v.Text, snap, c.planEnv())
		if err != nil {
			return nil, "", err
		}
		p = whole
	}
	s = &spread{c: c, plan: p, values: v, formats: f, budget: exec.NewBudget(spreadBudget)}
	if s.role, err = c.spreadRole(p, shards); err != nil {
		return nil, "", err
	}
	if p.Kind == sqlparse.KindDeclare {
		s.formats = nil
		if p.Cursor.Binary {
			s.formats = formats{1}
		}
	}
	if p.CopyOut != nil {
		if s.formats, err = s.copyFormats(); err != nil {
			return nil, "", err
		}
	}
	return s, "", nil
}

// spreadRole says on which kind of instance p runs, or why it may not.
func (c *Session) spreadRole(p *plan.Plan, shards []string) (catalog.Role, error) {
	neki := c.vars.Neki()
	if p.Route.Kind != plan.RouteReference && len(shards) > 1 {
		if neki.Fanout == settings.FanoutSingle || neki.Fanout == settings.FanoutMulti && p.Route.Kind == plan.RouteScatter {
			reach := "multi"
			if p.Route.Kind == plan.RouteScatter {
				reach = "scatter"
			}
			return 0, pgerr.New(pgerr.FanoutExceeded, "statement's fan-out (%s) exceeds __neki.fanout (%s)", reach, neki.Fanout)
		}
	}
	role, refused := plan.Access(p, neki, c.txState())
	if refused != nil {
		return 0, refused
	}
	return role, nil
}

// begin makes the run's context, which a cancel request of the client ends.
func (s *spread) begin() {
	s.session = s.c.valueSession()
	s.values.Session = s.session
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // ended by close
	s.unwatch = s.c.cancelOnInterrupt(s.cancel)
	s.c.running = append(s.c.running, s)
}

// prepare leases the connections and opens the answer.
func (s *spread) prepare(snap *catalog.Snapshot) error {
	sp := s.plan.Spread
	if err := s.enterTransaction(); err != nil {
		return err
	}
	if sp.Eval != nil {
		if err := s.evaluate(snap); err != nil {
			return err
		}
	}
	var err error
	if sp.Move != nil {
		err = s.moveRows(snap)
	} else {
		err = s.makeLegs(snap)
	}
	switch {
	case err != nil:
		return err
	case sp.Upkeep != nil:
		return s.runKept(snap)
	case sp.Spec == nil || sp.Move != nil:
		return nil
	}
	return s.open()
}

// makeLegs makes the legs and leases the connections to their shards.
func (s *spread) makeLegs(snap *catalog.Snapshot) error {
	sp := s.plan.Spread
	var all []string
	for i := range sp.Legs {
		texts, err := s.plan.LegTexts(&sp.Legs[i], s.values)
		if err != nil {
			return err
		}
		l := &legNode{spread: s, index: i, leg: &sp.Legs[i]}
		for _, t := range texts {
			l.shards, l.texts = append(l.shards, t.Shard), append(l.texts, t.SQL)
		}
		s.legs = append(s.legs, l)
		all = append(all, l.shards...)
	}
	slices.Sort(all)
	if err := s.lease(slices.Compact(all), snap); err != nil {
		return err
	}
	return s.learnTypes()
}

// open opens the engine's part.
func (s *spread) open() error {
	sp := s.plan.Spread
	s.columns = sp.Spec.Columns()
	if sp.Through > 0 {
		return nil
	}
	env := s.c.virtualEnv(nil)
	env.Budget, env.Caller = s.budget, s
	if err := s.bind(env); err != nil {
		return err
	}
	node, err := sp.Spec.Open(s.ctx, env)
	if err != nil {
		return err
	}
	s.node = node
	return nil
}

// bind gives the engine the values of the parameters.
func (s *spread) bind(env *exec.Env) error {
	for i, oid := range s.plan.Spread.Spec.ParamTypes() {
		if i >= len(s.values.Params) || s.values.Params[i] == nil || !slices.Contains(s.plan.Spread.Params, i) {
			env.Params = append(env.Params, datum.Null)
			continue
		}
		var d datum.Datum
		var err error
		if formatOf(s.values.Formats, i) == 1 {
			d, err = datum.ParseBinary(oid, s.values.Params[i])
		} else {
			d, err = datum.ParseText(oid, string(s.values.Params[i]), s.session)
		}
		if err != nil {
			return err
		}
		env.Params = append(env.Params, d)
	}
	return nil
}

// lease gets a connection to each shard: of the transaction, or for this statement. All sessions lease in the order of
// the uids, so that statements can't wait for each other in a circle.
func (s *spread) lease(shards []string, snap *catalog.Snapshot) error {
	defer s.measured.waited(time.Now())
	for _, shard := range shards {
		if snap.ReadOnly && s.role == catalog.RolePrimary && takesSpace(s.plan) {
			if err := refuseLow(snap.Shard(shard)); err != nil {
				return err
			}
		}
		if s.lane(shard) != nil {
			continue
		}
		if err := s.leaseOne(shard, snap); err != nil {
			return err
		}
	}
	return nil
}

// enterTransaction decides whether the statement runs in a transaction: in the client's, or, if it may write on several
// shards, in one of its own.
func (s *spread) enterTransaction() error {
	c := s.c
	s.own = c.stx == nil && c.lease == nil && !s.plan.Spread.Write
	if c.stx != nil || s.own {
		return nil
	}
	if err := c.leaveParsed(); err != nil {
		return err
	}
	if c.lease == nil && !s.plan.Spread.Write {
		s.own = true
		return nil
	}
	if c.lease != nil { // a transaction, or messages without a Sync, from before it could span shards
		return errSecondShard(c.place.shard, "several shards")
	}
	c.beginImplicit()
	return nil
}

func (s *spread) leaseOne(shard string, snap *catalog.Snapshot) error {
	c := s.c
	c.current = s.plan
	if !s.own {
		if err := c.enter(s.role, shard, snap); err != nil {
			return err
		}
		m := c.currentMember()
		if err := c.fitLease(); err != nil {
			return err
		}
		s.lanes = append(s.lanes, m)
		c.park()
		return nil
	}
	if err := c.acquireFit(s.role, shard, snap, 0); err != nil {
		return err
	}
	m := &member{sc: c.lease, place: c.place}
	if m.place.role == catalog.RolePrimary {
		c.shardState(shard).touched = true
	}
	s.lanes = append(s.lanes, m)
	c.lease = nil
	return nil
}

// again reports whether the statement, which has failed, is to be run once more: a read outside of a transaction that has lost
// a server before any of its answer left. What else was dead beside the lost connections is dropped.
func (s *spread) again(err error) bool {
	c := s.c
	switch pgerr.Code(err) {
	case pgerr.ConnectionFailure, pgerr.AdminShutdown, pgerr.CannotConnectNow:
	default:
		return false
	}
	if !s.own || s.answered || s.ctx.Err() != nil || !s.plan.Fresh(c.srv.cfg.Cluster.Snapshot(), c.planEnv()) ||
		time.Since(c.begun) >= c.srv.params.Load().BufferWindow {
		return false
	}
	if c.moves++; c.moves > maxStale {
		return false
	}
	s.endLegs() // whose goroutines have the connections until then
	for _, m := range s.lanes {
		if m.sc.Unfit() {
			m.sc.Stats().NoteDown(time.Now().Add(downFor), "connection lost")
			c.srv.pools.Pool(m.place.node, c.user, c.db.name).DropDead()
		}
	}
	return true
}

func (s *spread) lane(shard string) *member { return memberOf(s.lanes, shard) }

// OpenLeg implements plan.LegOpener.
func (s *spread) OpenLeg(leg int, _ exec.Need) (exec.Node, error) { return s.openLeg(leg) }

// close ends the run and gives its connections back.
func (s *spread) close() {
	c := s.c
	if s.closed {
		return
	}
	s.closed = true
	s.endLegs()
	s.unwatch()
	s.cancel()
	if s.own {
		s.giveBack()
	}
	c.shardCalls += s.calls
	c.running = slices.DeleteFunc(c.running, func(other *spread) bool { return other == s })
}

// leaveSpreads ends the runs that are open as the session ends: until their goroutines are joined, the connections are theirs.
func (c *Session) leaveSpreads() {
	c.suspended = nil
	for len(c.running) > 0 {
		c.running[len(c.running)-1].close()
	}
}

// abandonSpreads ends them after a panic: the engine's part is left as it is, and the connections are given up.
func (c *Session) abandonSpreads() {
	for _, s := range c.running {
		s.node = nil
		s.endLegs()
		for _, m := range s.lanes {
			m.sc.Broken()
		}
	}
}

// endLegs ends what runs on the shards, and waits for it.
func (s *spread) endLegs() {
	if s.node != nil {
		_ = s.node.Close()
		s.node = nil
	}
	for _, l := range s.legs {
		_ = l.Close()
	}
}

// giveBack ends the leases of a run outside of a transaction.
func (s *spread) giveBack() {
	c := s.c
	for _, m := range s.lanes {
		if !m.sc.Unfit() {
			c.cleanBounded(m.sc, false)
		}
		c.lease, c.place = m.sc, m.place
		c.release()
	}
	s.lanes = nil
}

// failed settles the session after an error of the run: a shard's transaction that has failed is the session's.
func (s *spread) failed(err error) error {
	c := s.c
	canceled := s.ctx.Err() != nil
	s.close()
	if canceled && pgerr.Code(err) == pgerr.QueryCanceled {
		err = c.cancellation()
	}
	if c.stx == nil || s.own {
		return err
	}
	for _, m := range s.lanes {
		if m.sc.Unfit() {
			c.use(m)
			c.dropLease()
			continue
		}
		if m.sc.Status() == 'E' && c.status != 'E' {
			c.use(m)
			c.status = 'E'
		}
	}
	return err
}

// description gives the answer's RowDescription message; nil when it has none. It is known once rows were asked for.
func (s *spread) description() ([]byte, error) {
	if sp := s.plan.Spread; sp.Spec != nil && sp.Pass == 0 {
		return appendRowDescription(nil, virtualColumns(s.columns), s.formats), nil
	}
	if s.shown == nil && len(s.legs) > 0 && !s.legs[0].described {
		if err := s.legs[0].describe(); err != nil {
			return nil, err
		}
	}
	return s.shown, nil
}

// noteDescription takes the RowDescription of a leg as the answer's.
func (s *spread) noteDescription(body []byte) {
	if s.shown != nil {
		return
	}
	if u := s.plan.Spread.Upkeep; u != nil {
		if u.Shown > 0 {
			s.shown = endMessage(cutDescription(append([]byte{'T', 0, 0, 0, 0}, body...), u.Shown), 0)
		}
		return
	}
	dst := append([]byte{'T', 0, 0, 0, 0}, body...)
	if n := s.plan.Spread.Pass; n > 0 && n < int(binary.BigEndian.Uint16(body)) {
		dst = cutDescription(dst, n)
	}
	s.shown = endMessage(dst, 0)
}

// cutDescription keeps the first n fields of a RowDescription message.
func cutDescription(msg []byte, n int) []byte {
	at := 7
	for range n {
		for msg[at] != 0 {
			at++
		}
		at += 1 + 18
	}
	binary.BigEndian.PutUint16(msg[5:], uint16(n))
	return msg[:at]
}

// next gives messages of rows, DataRow or CopyData; io.EOF after the last.
func (s *spread) next() (rows []byte, n int, err error) {
	rows, n, err = s.nextRows()
	if err != nil || s.plan.CopyOut == nil {
		return rows, n, err
	}
	if _, err = s.opening(); err != nil {
		return nil, 0, err
	}
	rows, err = s.asCopyData(rows)
	return rows, n, err
}

func (s *spread) nextRows() (rows []byte, n int, err error) {
	sp := s.plan.Spread
	switch {
	case s.closed:
		return nil, 0, io.EOF
	case sp.Upkeep != nil:
		return s.nextKept()
	case s.node != nil:
		return s.encode(s.node, s.columns)
	case len(s.legs) == 0:
		return nil, 0, io.EOF
	case sp.Through > 0:
		return s.legs[0].mergedRaw()
	}
	for {
		rows, n, err = s.legs[s.at].raw()
		if err != io.EOF || s.at+1 == len(s.legs) {
			return rows, n, err
		}
		s.at++
	}
}

// encode writes a node's rows as DataRow messages.
func (s *spread) encode(node exec.Node, columns []exec.Column) (rows []byte, n int, err error) {
	b, err := node.Next(s.ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range b.Len() {
		row, err := encodeRow(b.Row(i)[:len(columns)], columns, s.formats, s.session)
		if err != nil {
			return nil, 0, err
		}
		rows = append(rows, row...)
	}
	return rows, b.Len(), nil
}

// tag gives the command tag of the whole.
func (s *spread) tag() string {
	sp := s.plan.Spread
	switch {
	case s.plan.Kind == sqlparse.KindDeclare:
		return s.plan.Tag
	case s.plan.CopyOut != nil:
		return "COPY " + strconv.FormatInt(s.rows, 10)
	case !sp.Write && !s.copies():
		return "SELECT " + strconv.FormatInt(s.rows, 10)
	}
	var sum int64
	words := s.plan.Tag
	for _, tag := range s.tags {
		at := strings.LastIndexByte(tag, ' ')
		if n, err := strconv.ParseInt(tag[at+1:], 10, 64); err == nil {
			words = tag[:at]
			sum += n
		}
	}
	if len(s.tags) == 0 && words == "INSERT" {
		words = "INSERT 0"
	}
	return words + " " + strconv.FormatInt(sum, 10)
}

var _ plan.LegOpener = (*spread)(nil)
