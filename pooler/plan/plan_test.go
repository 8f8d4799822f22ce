package plan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/settings"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a VirtualSchema.
type names struct{}

func (names) HasRelation(name string) bool {
	return strings.Contains(" replicas shards sessions ", " "+name+" ")
}
func (names) HasFunction(name string) bool  { return name == "replica_choice" }
func (names) HasProcedure(name string) bool { return name == "reload" }

// someFunctions are a few rows of pg_proc, and a user's functions.
func someFunctions() []Function {
	sys := func(name string, minArgs, maxArgs int, volatile bool) Function {
		return Function{Schema: "pg_catalog", Name: name, MinArgs: minArgs, MaxArgs: maxArgs, Volatile: volatile}
	}
	return []Function{
		sys("count", 0, 0, false), sys("count", 1, 1, false), sys("lower", 1, 1, false), sys("now", 0, 0, false),
		sys("concat", 1, -1, false), sys("random", 0, 0, true), sys("pg_is_in_recovery", 0, 0, true),
		sys("nextval", 1, 1, true), sys("setseed", 1, 1, true), sys("set_config", 3, 3, true),
		sys("current_setting", 1, 2, false), sys("txid_current", 0, 0, false), sys("pg_backend_pid", 0, 0, false),
		sys("pg_current_wal_lsn", 0, 0, true), sys("pg_advisory_lock", 1, 1, true), sys("generate_series", 2, 3, false),
		{Schema: "public", Name: "audit", MinArgs: 0, MaxArgs: 1, Volatile: true},
		{Schema: "public", Name: "pure", MinArgs: 1, MaxArgs: 1},
		{Schema: "public", Name: "lower", MinArgs: 2, MaxArgs: 2, Volatile: true},
		{Schema: "app", Name: "pure", MinArgs: 2, MaxArgs: 2, Volatile: true},
	}
}

func loaded(t testing.TB) *Functions {
	t.Helper()
	f := NewFunctions(func(context.Context) ([]Function, []Relation, error) {
		return someFunctions(), []Relation{{Schema: "public", Name: "sessions"}}, nil
	})
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func twoShards() *catalog.Snapshot {
	return &catalog.Snapshot{
		PlanVersion: 1,
		Shards:      []catalog.Shard{{UID: "sh1", Name: "one"}, {UID: "sh2", Name: "two", Authoritative: true}},
	}
}

func newPlanner(t testing.TB, o Options) *Planner {
	t.Helper()
	if o.Virtual == nil {
		o.Virtual = names{}
	}
	pl, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pl.Close)
	return pl
}

// session is what the arguments of a test command say: target=replica tx=rw shard=sh1 path=a,b functions=no.
type session struct {
	neki settings.Neki
	tx   TxState
	env  *Env
}

func readSession(t *testing.T, d *datadriven.TestData) session {
	t.Helper()
	s := session{neki: settings.Default()}
	path := DefaultSearchPath
	var funcs FuncCatalog = loaded(t)
	for _, arg := range d.CmdArgs {
		value := strings.Join(arg.Vals, ",")
		var err error
		switch arg.Key {
		case "target", "shard":
			s.neki, err = s.neki.Set("__neki."+arg.Key, value)
		case "tx":
			s.tx = map[string]TxState{"rw": TxReadWrite, "ro": TxReadOnly, "pinned": TxPinned}[value]
		case "path":
			path = value
		case "functions":
			funcs = nil
		default:
			err = fmt.Errorf("argument %q", arg.Key)
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	s.env = NewEnv("db", "alice", path, funcs)
	return s
}

func writeError(b *strings.Builder, err error) {
	e := pgerr.From(err)
	fmt.Fprintf(b, "%s %s: %s\n", e.Severity, e.Code, e.Message)
	if e.Detail != "" {
		fmt.Fprintf(b, "DETAIL: %s\n", e.Detail)
	}
	if e.Hint != "" {
		fmt.Fprintf(b, "HINT: %s\n", e.Hint)
	}
}

// describePlan shows what was decided, one fact a line, only what is not the zero value.
func describePlan(b *strings.Builder, p *Plan, snap *catalog.Snapshot, s session) {
	fmt.Fprintf(b, "%s: %s", p.Tag, p.Verdict)
	if p.Why != "" {
		fmt.Fprintf(b, " (%s)", p.Why)
	}
	fmt.Fprintf(b, "\nroute: %s\n", p.Route.Kind)
	if pins := p.Pins.Reasons(); pins != nil {
		fmt.Fprintf(b, "pins: %s\n", strings.Join(pins, ", "))
	}
	if p.ChangesFunctions {
		b.WriteString("changes functions\n")
	}
	if p.Set != nil {
		fmt.Fprintf(b, "set: %q = %q local=%t default=%t all=%t\n", p.Set.Name, p.Set.Value, p.Set.Local, p.Set.Default, p.Set.All)
	}
	for _, c := range p.SetConfigs {
		fmt.Fprintf(b, "set_config: %q = %q local=%t constant=%t\n", c.Name, c.Value, c.Local, c.Constant)
	}
	if p.Inner != nil {
		fmt.Fprintf(b, "inner: %s %s\n", p.Inner.Tag, class(p.Inner))
	}
	if p.Route.Kind == RouteLocal || p.Route.Kind == RouteVirtual {
		return
	}
	role, err := Access(p, s.neki, s.tx)
	if err != nil {
		writeError(b, err)
		return
	}
	shard, err := Destination(p, s.neki, snap)
	if err != nil {
		writeError(b, err)
		return
	}
	fmt.Fprintf(b, "to: %s %s\n", role, shard)
}

// TestPlans runs testdata/plans/*: SQL to what was decided. Several statements in one input are planned by PlanAll.
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/plans", func(t *testing.T, path string) {
		pl := newPlanner(t, Options{})
		snap := twoShards()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := readSession(t, d)
			var b strings.Builder
			switch d.Cmd {
			case "plan":
				parts, err := pl.PlanAll(nil, []byte(d.Input), snap, s.env)
				if err != nil {
					writeError(&b, err)
				}
				for i, part := range parts {
					if i > 0 {
						b.WriteString("--\n")
					}
					describePlan(&b, part.Plan, snap, s)
				}
			case "explain":
				p, err := pl.Plan([]byte(d.Input), snap, s.env)
				if err != nil {
					writeError(&b, err)
					break
				}
				for _, line := range Render(p.Explain, explained(p.Explain, snap, s)) {
					b.WriteString(line + "\n")
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return b.String()
		})
	})
}

// explained stands in for the session that executes an EXPLAIN (NEKI_PLAN).
func explained(e *Explain, snap *catalog.Snapshot, s session) Explained {
	x := Explained{Target: s.neki.Target.String()}
	role, err := Access(e.Inner, s.neki, s.tx)
	if err == nil && e.Inner.Route.Backend() {
		x.Access = role.String()
		x.Shard, err = Destination(e.Inner, s.neki, snap)
	}
	if err != nil {
		x.Refused = err
		return x
	}
	if e.Analyze {
		x.Actual = &Actual{Rows: 3, Duration: 1234 * time.Microsecond}
	}
	if e.PGPlan {
		x.PGPlan = []string{"Seq Scan on t", "  Filter: (id = 1)"}
	}
	switch role {
	case catalog.RolePrimary:
		x.Instances = []Instance{{Node: "sh2-a", Role: "primary", Cell: "az-a", Tier: "preferred", Chosen: true}}
	case catalog.RoleReplica:
		x.Instances = []Instance{
			{Node: "sh2-b", Role: "replica", Cell: "az-a", Tier: "preferred", Load: 2, Chosen: true},
			{Node: "sh2-c", Role: "replica", Cell: "az-b", Tier: "excluded", Reason: "lag 17m > 15m"},
		}
	case catalog.RoleRdonly:
		x.Refused = pgerr.New(pgerr.NoEligibleReplica, "no eligible rdonly for shard \"two\"")
	default:
	}
	return x
}

func TestPlanRefusesSeveral(t *testing.T) {
	pl := newPlanner(t, Options{})
	_, err := pl.Plan([]byte("select 1; select 2"), twoShards(), NewEnv("db", "alice", DefaultSearchPath, nil))
	if pgerr.Code(err) != pgerr.SyntaxError {
		t.Errorf("got %v", err)
	}
}

func TestPlanAllSpans(t *testing.T) {
	pl := newPlanner(t, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, nil)
	text := "/* a */ select 1 ; ; set x.y = 'b;c';select ';' "
	parts, err := pl.PlanAll(nil, []byte(text), twoShards(), env)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range parts {
		got = append(got, text[p.Start:p.End])
	}
	want := []string{"select 1", "set x.y = 'b;c'", "select ';'"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlanWithoutShards(t *testing.T) {
	pl := newPlanner(t, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, nil)
	p, err := pl.Plan([]byte("select * from neki.shards"), &catalog.Snapshot{}, env)
	if err != nil || p.Route.Kind != RouteVirtual {
		t.Errorf("got %+v, %v", p, err)
	}
	p, err = pl.Plan([]byte("select * from t"), &catalog.Snapshot{}, env)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Destination(p, settings.Default(), &catalog.Snapshot{}); err == nil || err.Code != pgerr.NoServingPrimary {
		t.Errorf("got %v", err)
	}
}

func TestAccessAll(t *testing.T) {
	pl := newPlanner(t, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, loaded(t))
	auto, _ := settings.Default().Set("__neki.target", "auto")
	replica, _ := settings.Default().Set("__neki.target", "replica")
	for _, tc := range []struct {
		text string
		neki settings.Neki
		want catalog.Role
		code string
	}{
		{"select 1; select count(*) from t", auto, catalog.RoleReplica, ""},
		{"select 1; insert into t values (1)", auto, catalog.RolePrimary, ""},
		{"insert into t values (1); select 1", auto, catalog.RolePrimary, ""},
		{"select 1; insert into t values (1)", replica, catalog.RoleUnknown, pgerr.ReadOnlySQLTransaction},
		{"select 1; set x.y = 1", replica, catalog.RoleReplica, ""},
		{"select 1; set x.y = 1", auto, catalog.RolePrimary, ""},
		{"", replica, catalog.RoleReplica, ""},
	} {
		parts, err := pl.PlanAll(nil, []byte(tc.text), twoShards(), env)
		if err != nil {
			t.Fatal(err)
		}
		role, refused := AccessAll(parts, tc.neki, TxNone)
		code := ""
		if refused != nil {
			code = refused.Code
		}
		if role != tc.want || code != tc.code {
			t.Errorf("%q: %v %q, want %v %q", tc.text, role, code, tc.want, tc.code)
		}
	}
}

func TestDisprove(t *testing.T) {
	pl := newPlanner(t, Options{})
	env := NewEnv("db", "alice", DefaultSearchPath, loaded(t))
	p, err := pl.Plan([]byte("select * from view_with_nextval"), twoShards(), env)
	if err != nil {
		t.Fatal(err)
	}
	auto, _ := settings.Default().Set("__neki.target", "auto")
	if role, _ := Access(p, auto, TxNone); role != catalog.RoleReplica {
		t.Fatalf("first to %v", role)
	}
	p.Disprove()
	if role, _ := Access(p, auto, TxNone); role != catalog.RolePrimary {
		t.Errorf("then to %v", role)
	}
}

func TestCheckParameter(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		refused     bool
	}{
		{"standard_conforming_strings", "on", false},
		{"standard_conforming_strings", "OFF", true},
		{"Standard_Conforming_Strings", "0", true},
		{"client_encoding", "UTF8", false},
		{"client_encoding", "sjis", true},
		{"client_encoding", "Shift_JIS", true},
		{"client_encoding", "SHIFT_JIS_2004", true},
		{"client_encoding", "GB18030", true},
		{"client_encoding", "LATIN1", false},
		{"synchronous_commit", "on", false},
		{"synchronous_commit", "TRUE", false},
		{"synchronous_commit", "remote_apply", false},
		{"synchronous_commit", "off", true},
		{"synchronous_commit", "local", true},
		{"Synchronous_Commit", "remote_write", true},
		{"work_mem", "off", false},
	} {
		err := CheckParameter(tc.name, tc.value)
		if (err != nil) != tc.refused || err != nil && err.Code != pgerr.FeatureNotSupported {
			t.Errorf("%s=%s: %v", tc.name, tc.value, err)
		}
	}
}

func TestBeginState(t *testing.T) {
	for _, tc := range []struct {
		readOnly  bool
		isolation string
		want      TxState
	}{
		{false, "read committed", TxReadWrite}, {true, "repeatable read", TxReadOnly}, {true, "serializable", TxReadWrite},
	} {
		if got := BeginState(tc.readOnly, tc.isolation); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestResolvePath(t *testing.T) {
	for path, want := range map[string]string{
		`"$user", public`:           "pg_catalog alice public",
		`public, pg_catalog`:        "public pg_catalog",
		`"A ""b""", Public ,public`: `pg_catalog A "b" public`,
		``:                          "pg_catalog",
		`""`:                        "pg_catalog",
		`neki`:                      "pg_catalog neki",
	} {
		if got := strings.Join(NewEnv("db", "alice", path, nil).SearchPath(), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestFunctions(t *testing.T) {
	list, failure := someFunctions(), error(nil)
	f := NewFunctions(func(context.Context) ([]Function, []Relation, error) { return list, nil, failure })
	path := []string{"pg_catalog", "public"}
	if _, known := f.Volatile("", "lower", 1, path); known {
		t.Error("something is known before the first Refresh")
	}
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		schema, name    string
		nargs           int
		volatile, known bool
	}{
		{"", "lower", 1, false, true},
		{"", "lower", 2, true, true},
		{"pg_catalog", "lower", 2, true, false},
		{"", "random", 0, false, true},
		{"", "nextval", 1, true, true},
		{"", "txid_current", 0, true, true},
		{"", "audit", 0, true, true},
		{"", "audit", 2, true, false},
		{"", "pure", 1, false, true},
		{"app", "pure", 2, true, true},
		{"", "pure", 2, true, false},
		{"", "concat", 7, false, true},
		{"", "concat", 0, true, false},
		{"", "missing", 0, true, false},
	} {
		volatile, known := f.Volatile(tc.schema, tc.name, tc.nargs, path)
		if volatile != tc.volatile || known != tc.known {
			t.Errorf("%s.%s/%d: volatile %t known %t", tc.schema, tc.name, tc.nargs, volatile, known)
		}
	}
	version := f.Version()
	list = append([]Function{list[len(list)-1]}, list[:len(list)-1]...)
	if err := f.Refresh(t.Context()); err != nil || f.Version() != version {
		t.Errorf("another order of rows: version %d -> %d, %v", version, f.Version(), err)
	}
	failure = errors.New("no connection")
	if err := f.Refresh(t.Context()); !errors.Is(err, failure) || !f.Loaded() {
		t.Errorf("a failed Refresh: %v, loaded %t", err, f.Loaded())
	}
	f.Invalidate()
	select {
	case <-f.Stale():
	default:
		t.Error("Invalidate does not ask for a Refresh")
	}
	if f.Version() == version || f.Loaded() {
		t.Error("Invalidate keeps what was known")
	}
	for _, tc := range []struct {
		schema, name string
		path         []string
		known        bool
	}{
		{"", "concat", path, true},
		{"pg_catalog", "concat", path, true},
		{"", "concat", []string{"public", "pg_catalog"}, false}, // public may have got one
		{"", "pure", path, false},
		{"", "lower", path, false}, // public had one
	} {
		if _, known := f.Volatile(tc.schema, tc.name, 1, tc.path); known != tc.known {
			t.Errorf("after Invalidate %s.%s under %v: known %t", tc.schema, tc.name, tc.path, known)
		}
	}
	if _, known := f.Relation("public", "sessions"); known {
		t.Error("relations are known after Invalidate")
	}
}

// TestRefreshOvertaken: what was read before an Invalidate must not count after it.
func TestRefreshOvertaken(t *testing.T) {
	var f *Functions
	f = NewFunctions(func(context.Context) ([]Function, []Relation, error) {
		f.Invalidate()
		return someFunctions(), nil, nil
	})
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.Loaded() {
		t.Error("functions read before the change are taken for current")
	}
}

func TestFunctionsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		f := NewFunctions(func(context.Context) ([]Function, []Relation, error) {
			if loads.Add(1) == 1 {
				return nil, nil, errors.New("no connection")
			}
			return someFunctions(), nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Run(ctx, time.Minute, slog.New(slog.DiscardHandler))
		}()
		after := func(d time.Duration, wantLoads int64, wantLoaded bool) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := loads.Load(); n != wantLoads || f.Loaded() != wantLoaded {
				t.Errorf("%d loads, loaded %t; want %d, %t", n, f.Loaded(), wantLoads, wantLoaded)
			}
		}
		after(0, 1, false)
		after(time.Second, 2, true)
		after(59*time.Second, 2, true)
		after(time.Second, 3, true)
		f.Invalidate()
		after(0, 4, true) // at once
		for range 50 {    // a script of many changes
			f.Invalidate()
			time.Sleep(time.Millisecond)
		}
		after(time.Millisecond, 4, false)
		after(time.Second, 6, true) // one for the first, one for those that came while it waited
		cancel()
		<-done
	})
}
