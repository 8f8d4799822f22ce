package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/catalog"
	"neki/cluster/decide"
)

// observeTimeout bounds a look at the server for the admin, who gives an agent two seconds to answer.
const observeTimeout = 800 * time.Millisecond

// Observation is what the server says at a moment; for an admin's decisions, so nothing in it is older than the question.
type Observation struct {
	// Up: it answers, and what follows is known. A standby without a receiver counts as up only when it has replayed all
	// that is local: before that, the end of its log is not known.
	Up            bool               `json:"up,omitempty"`
	Why           string             `json:"why,omitempty"` // not Up
	Primary       bool               `json:"primary,omitempty"`
	Streaming     bool               `json:"streaming,omitempty"`
	LastMsg       time.Duration      `json:"last_msg_ns,omitempty"`
	Timeline      int32              `json:"tli,omitempty"`
	ReceiveLSN    catalog.LSN        `json:"receive_lsn,omitempty"` // end of what is flushed
	ReplayLSN     catalog.LSN        `json:"replay_lsn,omitempty"`
	Replayed      bool               `json:"replayed,omitempty"`
	ReplayPaused  bool               `json:"replay_paused,omitempty"`
	Row           decide.TermRow     `json:"row"`
	History       []decide.Switch    `json:"history,omitempty"`
	Acknowledgers []decide.Walsender `json:"acknowledgers,omitempty"`
	OldestLSN     catalog.LSN        `json:"oldest_lsn,omitempty"` // where the contiguous log in its files begins
	LostSlots     []string           `json:"lost_slots,omitempty"` // slots of no use, by node where there is one
}

// observer asks the server; requests take turns on its connection.
type observer struct {
	a    *Agent
	turn chan struct{} // holds one token

	conn  *pgx.Conn
	repl  *pgconn.PgConn // a walsender's, for what only it tells
	still stillness
}

// stillness remembers since when replay stands where it is, in one life of the server.
type stillness struct {
	pid   int
	at    catalog.LSN
	since time.Time
}

func newObserver(a *Agent) *observer {
	o := &observer{a: a, turn: make(chan struct{}, 1)}
	o.turn <- struct{}{}
	return o
}

// look asks the server. What stands in the way is in the answer.
func (o *observer) look(ctx context.Context) Observation {
	ctx, cancel := context.WithTimeout(ctx, o.a.patience(observeTimeout))
	defer cancel()
	select {
	case <-o.turn:
		defer func() { o.turn <- struct{}{} }()
	case <-ctx.Done():
		return Observation{Why: "the server is slow to answer"}
	}
	if !o.a.pg.Ready() {
		o.disconnect()
		return Observation{Why: "not running, or not ready"}
	}
	ob, err := o.ask(ctx)
	if err != nil {
		o.disconnect()
		return Observation{Why: err.Error()}
	}
	return ob
}

func (o *observer) disconnect() {
	if o.conn != nil {
		closeSoon(o.conn)
		o.conn = nil
	}
	if o.repl != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = o.repl.Close(ctx) // the server may be gone
		o.repl = nil
	}
}

// observeQuery is one round trip. A standby's wait for a source to be tried again means, when it never had a receiver,
// that it has replayed all that is local.
const observeQuery = `
SELECT pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_flush_lsn() END::text,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END::text,
       r.pid IS NOT NULL, coalesce(r.status = 'streaming', false), coalesce(r.received_tli, 0),
       coalesce(extract(epoch FROM clock_timestamp() - r.last_msg_receipt_time), 0)::float8,
       CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() <> 'not paused' ELSE false END,
       coalesce((SELECT a.wait_event = 'RecoveryRetrieveRetryInterval' FROM pg_stat_activity a
                  WHERE a.backend_type = 'startup' LIMIT 1), false),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
       to_regclass('neki.term_log') IS NOT NULL
  FROM (SELECT) one LEFT JOIN pg_stat_wal_receiver r ON true`

func (o *observer) ask(ctx context.Context) (Observation, error) {
	var ob Observation
	if o.conn == nil || o.conn.IsClosed() {
		conn, err := o.a.connect(ctx, "postgres", observeTimeout)
		if err != nil {
			return ob, err
		}
		o.conn = conn
	}
	var recovery, receiver, retries, hasLog bool
	var receive, replay *string
	var receivedLine, ownLine int32
	var age float64
	err := o.conn.QueryRow(ctx, observeQuery).Scan(&recovery, &receive, &replay, &receiver, &ob.Streaming, &receivedLine, &age,
		&ob.ReplayPaused, &retries, &ownLine, &hasLog)
	if err != nil {
		return ob, err
	}
	if ob.ReceiveLSN, err = parseLSN(receive); err != nil {
		return ob, err
	}
	if ob.ReplayLSN, err = parseLSN(replay); err != nil {
		return ob, err
	}
	ob.LastMsg, ob.Primary, ob.Timeline = time.Duration(age*float64(time.Second)), !recovery, ownLine
	ended := false // the end of a standby's log is known though not all is replayed
	if recovery {
		if err := o.askStandby(ctx, &ob, receiver, retries, receive != nil, receivedLine); err != nil {
			return ob, err
		}
		ended = !receiver && receive != nil && !o.a.laterTimeline(ob.Timeline)
	} else {
		ob.ReplayLSN, ob.Replayed = ob.ReceiveLSN, true
		if ob.Acknowledgers, err = walsenders(ctx, o.conn); err != nil {
			return ob, err
		}
		if ob.LostSlots, err = o.lostSlots(ctx); err != nil {
			return ob, err
		}
	}
	if hasLog {
		err = o.conn.QueryRow(ctx, "SELECT term, tli FROM neki.term_log ORDER BY term DESC LIMIT 1").Scan(&ob.Row.Term, &ob.Row.Timeline)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return ob, err
		}
	}
	ob.OldestLSN = oldestLog(o.a.pg.DataDir(), max(ob.ReceiveLSN, ob.ReplayLSN))
	ob.History, err = readHistory(o.a.pg.DataDir(), ob.Timeline)
	ob.Up = ob.Primary || receiver || ob.Replayed || ended
	if !ob.Up {
		ob.Why = "it has not replayed all of its log"
	}
	return ob, err
}

// askStandby tells where a standby's log ends, and on which timeline.
func (o *observer) askStandby(ctx context.Context, ob *Observation, receiver, retries, everReceived bool, receivedLine int32) error {
	if pid := o.a.pg.Running(); o.still.pid != pid || o.still.at != ob.ReplayLSN || receiver || !retries || ob.ReplayPaused {
		o.still = stillness{pid: pid, at: ob.ReplayLSN, since: time.Now()}
	}
	switch {
	case everReceived && ob.ReplayLSN >= ob.ReceiveLSN:
		ob.Replayed = true
	case receiver || ob.ReplayPaused:
	case !everReceived:
		ob.Replayed = retries
	default: // the received log may end within a record, which is never replayed
		ob.Replayed = retries && time.Since(o.still.since) >= stillAfter
	}
	ob.ReceiveLSN = max(ob.ReceiveLSN, ob.ReplayLSN)
	if receiver && receivedLine > 0 {
		ob.Timeline = receivedLine
		return nil
	}
	line, err := o.replayTimeline(ctx)
	ob.Timeline = line
	return err
}

// stillAfter is how long replay must stand, while every source is tried several times, to be at the end.
const stillAfter = 500 * time.Millisecond

// laterTimeline tells whether there is log of a later timeline than the given one, which may have been received and not been
// replayed; also when that can't be told. A receiver keeps the history of a timeline before its log.
func (a *Agent) laterTimeline(line int32) bool {
	names, err := os.ReadDir(filepath.Join(a.pg.DataDir(), "pg_wal"))
	if err != nil {
		return true
	}
	for _, f := range names {
		name := strings.TrimSuffix(f.Name(), ".history")
		if len(name) != 8 && len(name) != 24 {
			continue
		}
		if n, err := strconv.ParseInt(name[:8], 16, 64); err == nil && n > int64(line) {
			return true
		}
	}
	return false
}

// replayTimeline asks for the timeline that is replayed: no SQL function tells it, a walsender does.
func (o *observer) replayTimeline(ctx context.Context) (int32, error) {
	if o.repl == nil || o.repl.IsClosed() {
		cfg, err := pgconn.ParseConfig(o.a.pg.LocalDSN("postgres") + " replication=true application_name=neki_agent")
		if err != nil {
			return 0, err
		}
		if o.repl, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
			return 0, fmt.Errorf("timeline: %w", err)
		}
	}
	results, err := o.repl.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	if err != nil {
		return 0, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 2 {
		return 0, errors.New("IDENTIFY_SYSTEM gave no row")
	}
	line, err := strconv.ParseInt(string(results[0].Rows[0][1]), 10, 32)
	return int32(line), err
}

func parseLSN(text *string) (catalog.LSN, error) {
	if text == nil {
		return 0, nil
	}
	return catalog.ParseLSN(*text)
}

// walsenders are the standbys as the primary sees them.
func walsenders(ctx context.Context, conn *pgx.Conn) ([]decide.Walsender, error) {
	rows, err := conn.Query(ctx, `SELECT application_name, state = 'streaming', coalesce(sync_priority, 0) > 0,
		coalesce(flush_lsn, '0/0')::text, coalesce(extract(epoch FROM clock_timestamp() - reply_time), 1e6)::float8
		FROM pg_stat_replication WHERE application_name <> 'neki_agent'`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (w decide.Walsender, err error) {
		var lsn string
		var age float64
		if err = row.Scan(&w.Node, &w.Streaming, &w.Sync, &lsn, &age); err != nil {
			return w, err
		}
		w.ReplyAge = time.Duration(age * float64(time.Second))
		w.Flush, err = catalog.ParseLSN(lsn)
		return w, err
	})
}

// lostSlots are our slots that must be made anew, by the nodes that they are of: nothing can stream through one that is
// not there, or has lost its WAL. Slots of nodes that are gone are among them, by their own names.
func (o *observer) lostSlots(ctx context.Context) ([]string, error) {
	_, m := o.a.memory.get()
	if !m.Led {
		return nil, nil
	}
	rows, err := o.conn.Query(ctx, `SELECT slot_name::text, active OR wal_status IS DISTINCT FROM 'lost', active
		FROM pg_replication_slots WHERE slot_type = 'physical' AND slot_name LIKE 'neki\_%'`)
	if err != nil {
		return nil, err
	}
	type slot struct {
		Name          string
		Whole, Active bool
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return nil, err
	}
	missing := make(map[string]string, len(m.Peers))
	for _, peer := range m.Peers {
		missing[SlotName(peer)] = peer
	}
	var lost []string
	for _, s := range have {
		_, wanted := missing[s.Name]
		if wanted && s.Whole {
			delete(missing, s.Name)
		} else if !wanted && !s.Active {
			lost = append(lost, s.Name)
		}
	}
	lost = slices.AppendSeq(lost, maps.Values(missing))
	slices.Sort(lost)
	return lost, nil
}

// oldestLog gives where the log begins that the files of pg_wal hold without a gap up to a position; 0 = it isn't known.
// Which timeline a file is named for doesn't matter: a segment in which one was left is there by either name.
func oldestLog(dataDir string, end catalog.LSN) catalog.LSN {
	files, err := os.ReadDir(filepath.Join(dataDir, "pg_wal"))
	if err != nil || end == 0 {
		return 0
	}
	have := make(map[uint64]bool, len(files))
	for _, f := range files {
		name := f.Name()
		if len(name) != 24 {
			continue
		}
		high, errHigh := strconv.ParseUint(name[8:16], 16, 32)
		low, errLow := strconv.ParseUint(name[16:], 16, 32)
		if errHigh == nil && errLow == nil {
			have[high<<8|low] = true
		}
	}
	at := uint64(end-1) / segmentBytes
	if !have[at] {
		return 0
	}
	for at > 0 && have[at-1] {
		at--
	}
	return catalog.LSN(at * segmentBytes)
}

// segmentBytes is the size of a file of pg_wal; initdb's default is used everywhere.
const segmentBytes = 16 << 20

// readHistory reads a timeline's history file, oldest switch first. The first timeline has none.
func readHistory(dataDir string, line int32) ([]decide.Switch, error) {
	if line <= 1 {
		return nil, nil
	}
	b, err := os.ReadFile(filepath.Join(dataDir, "pg_wal", fmt.Sprintf("%08X.history", line)))
	if err != nil {
		return nil, err
	}
	var list []decide.Switch
	for text := range strings.Lines(string(b)) {
		f := strings.Fields(text)
		if len(f) < 2 || strings.HasPrefix(f[0], "#") {
			continue
		}
		n, err := strconv.ParseInt(f[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %w", line, err)
		}
		lsn, err := catalog.ParseLSN(f[1])
		if err != nil {
			return nil, fmt.Errorf("history of timeline %d: %w", line, err)
		}
		list = append(list, decide.Switch{Timeline: int32(n), LSN: lsn})
	}
	return list, nil
}

// inForce is a proof that synchronous standbys are in force in one life of the server.
type inForce struct {
	pid      int
	standbys []string
	acks     int
}

// Status tells what the agent is and does. What it promised is read before what the server says.
func (a *Agent) Status(ctx context.Context) Status {
	promises, member := a.memory.get()
	h, _ := a.health.latest(time.Second)
	st := Status{
		Node: a.cfg.Node, Shard: a.cfg.Shard, Role: a.cfg.Role, Empty: !a.pg.HasData(), Seed: a.seeded(), SystemID: a.pg.SystemID(),
		Standby: a.pg.IsStandby(), PID: a.pg.Running(), Promises: promises, Member: member, Health: h,
		BinDir: a.cfg.Installation.BinDir, Version: a.cfg.Version, DataDir: a.pg.DataDir(), LogTail: a.pg.LogTail(5),
		StartedAt: a.started, Server: a.observer.look(ctx), FencedLSN: catalog.LSN(a.fencedLSN.Load()),
	}
	st.Exited = a.exited.Load() && a.pg.Running() == 0
	st.Hung = a.hung.Load() && a.pg.Running() != 0
	st.Archived = a.archivedNow(&st.Server)
	st.Work, st.Filled = a.work.Load(), a.filled.Load()
	if d := a.damage.Load(); d != nil && st.Standby {
		st.Damage = *d
	}
	st.Stalled = a.flushing.stalled(time.Now())
	st.Broken = promises.RewindInProgress && !a.replacing.Load()
	st.Writable = st.Server.Primary && st.FencedLSN == 0
	if at := a.selfFenced.Load(); at != 0 {
		st.SelfFenced, st.SelfFencedFor = true, bootTime()-time.Duration(at)
	}
	if f := a.inForce.Load(); f != nil && st.Server.Primary {
		st.InForce = f.pid == st.PID && f.acks == member.Acks && equal(f.standbys, member.Standbys)
	}
	return st
}
