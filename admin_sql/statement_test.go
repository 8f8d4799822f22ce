package adminsql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"neki/catalog"
	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// TestStatements runs testdata: statements as a session would prepare, describe and execute them. user says who runs
// them, path is his search_path, p gives values of parameters in text form.
func TestStatements(t *testing.T) {
	f := newFixture(t)
	schema := f.schema()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			user, fails := "vera", ""
			d.MaybeScanArgs(t, "user", &user)
			d.MaybeScanArgs(t, "fails", &fails)
			if f.done, f.fails = nil, nil; fails != "" {
				f.fails = pgerr.New(pgerr.SystemError, "%s", fails)
			}
			var params, path []string
			for _, arg := range d.CmdArgs {
				switch arg.Key {
				case "p":
					params = append(params, arg.Vals...)
				case "path":
					path = append(path, arg.Vals...)
				}
			}
			events := len(f.events)
			out, err := runStatement(t, schema, d.Input, people[user], path, params)
			for _, done := range f.done {
				out += "did: " + done + "\n"
			}
			if len(f.events) > events {
				e := f.events[0]
				out += fmt.Sprintf("event: %s %s by %s, shard %q\n", e.Kind, e.Detail, e.By, e.Shard)
				f.events = f.events[len(f.events)-events:]
			}
			if err != nil {
				out += describeError(err)
			}
			return out
		})
	})
}

func runStatement(t *testing.T, schema *Schema, sql string, sess Session, path, params []string) (string, error) {
	parsed, err := sqlparse.Parse(sql)
	if err != nil {
		return "", err
	}
	st, err := schema.Prepare(sess, parsed, path, nil)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if types := st.ParamTypes(); len(types) > 0 {
		out.WriteString("parameters:")
		for _, oid := range types {
			out.WriteString(" " + datum.Name(oid))
		}
		out.WriteString("\n")
	}
	env := &exec.Env{
		Now: moment.Add(90 * time.Second), User: sess.User(), SessionUser: sess.User(), Caller: sess,
		Params: bind(t, st.ParamTypes(), params),
		Vars: func(name string) (string, bool) {
			value, source := sess.Setting(name)
			return value, source != ""
		},
	}
	node, err := st.Run(t.Context(), env, func(n *pgerr.Error) { fmt.Fprintf(&out, "%s: %s\n", n.Severity, n.Message) })
	if err != nil {
		return out.String(), err
	}
	if node != nil {
		defer node.Close()
		err = writeRows(t, &out, st.Columns(), node)
	}
	if err == nil {
		fmt.Fprintln(&out, st.Tag())
	}
	return out.String(), err
}

func bind(t *testing.T, types []uint32, texts []string) []datum.Datum {
	var params []datum.Datum
	for i, text := range texts {
		v, err := datum.ParseText(types[i], text, &datum.Session{})
		if err != nil {
			t.Fatal(err)
		}
		params = append(params, v)
	}
	return params
}

func writeRows(t *testing.T, out *strings.Builder, columns []exec.Column, node exec.Node) error {
	var header []string
	for _, c := range columns {
		header = append(header, c.Name+" "+datum.Name(c.Type.OID))
	}
	out.WriteString(strings.Join(header, " | ") + "\n")
	for {
		batch, err := node.Next(t.Context())
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch.Len() {
			writeRow(t, out, columns, batch.Row(i))
		}
	}
}

func writeRow(t *testing.T, out *strings.Builder, columns []exec.Column, row []datum.Datum) {
	cells := make([]string, len(row))
	for i, d := range row {
		cells[i] = "NULL"
		if d.IsNull() {
			continue
		}
		text, err := datum.Format(columns[i].Type.OID, d, &datum.Session{})
		if err != nil {
			t.Fatal(err)
		}
		cells[i] = text
	}
	out.WriteString(strings.Join(cells, " | ") + "\n")
}

func describeError(err error) string {
	e := pgerr.From(err)
	out := fmt.Sprintf("%s %s: %s\n", e.Severity, e.Code, e.Message)
	if e.Detail != "" {
		out += "DETAIL: " + e.Detail + "\n"
	}
	if e.Hint != "" {
		out += "HINT: " + e.Hint + "\n"
	}
	if e.Position > 0 {
		out += fmt.Sprintf("at character %d\n", e.Position)
	}
	return out
}

// TestBothFormats selects all of every relation and function: the columns described are the registry's, and each value
// is the same whether the client asks for text or binary.
func TestBothFormats(t *testing.T) {
	schema := newFixture(t).schema()
	for _, r := range schema.Relations() {
		from := r.FullName()
		user := people["vera"]
		switch {
		case r.Operator:
			from, user = from+"('"+fixtureTopology+"', true, '{\"expected_revision\": 1}')", people["oscar"]
		case r.Name == "shard_for":
			from += "('by_id', 1)"
		case r.Name == "wait_for_data_topology":
			from += "(2)"
		case len(r.Args) == 1:
			from += "('sh1')"
		case r.Function:
			from += "()"
		}
		parsed, err := sqlparse.Parse("SELECT * FROM " + from)
		if err != nil {
			t.Fatal(err)
		}
		p, err := schema.Prepare(user, parsed, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		if diff := cmp.Diff(r.execColumns(), p.Columns()); diff != "" {
			t.Errorf("%s: columns (-registry +described):\n%s", from, diff)
		}
		node, err := p.Run(t.Context(), &exec.Env{Caller: user}, nil)
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		batch, err := node.Next(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		for i := range batch.Len() {
			for j, c := range p.Columns() {
				sameInBoth(t, from+"."+c.Name, c.Type.OID, batch.Value(i, j))
			}
		}
		if err := node.Close(); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
}

func sameInBoth(t *testing.T, what string, oid uint32, v datum.Datum) {
	if v.IsNull() {
		return
	}
	session := &datum.Session{}
	text, err := datum.Format(oid, v, session)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	wire, err := datum.AppendBinary(nil, oid, v, session)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	back, err := datum.ParseBinary(oid, wire)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if again, err := datum.Format(oid, back, session); err != nil || again != text {
		t.Errorf("%s: %q in text, %q through binary (%v)", what, text, again, err)
	}
}

// TestPreparedIsShared: one Prepared serves several sessions at once, each with its own rights and rows.
func TestPreparedIsShared(t *testing.T) {
	schema := newFixture(t).schema()
	prepare := func(sql string) Prepared {
		parsed, err := sqlparse.Parse(sql)
		if err != nil {
			t.Fatal(err)
		}
		p, err := schema.Prepare(people["postgres"], parsed, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	sessions, shards := prepare("SELECT count(*) FROM neki.sessions"), prepare("SELECT count(*) FROM neki.shards")
	var all sync.WaitGroup
	for user, want := range map[string]string{"vera": "2 2", "oscar": "2 2", "alice": "1 42501", "postgres": "2 2"} {
		for range 20 {
			all.Go(func() {
				if got := count(t.Context(), sessions, people[user]) + " " + count(t.Context(), shards, people[user]); got != want {
					t.Errorf("%s: %s, want %s", user, got, want)
				}
			})
		}
	}
	all.Wait()
	if _, err := shards.Run(t.Context(), &exec.Env{}, nil); pgerr.Code(err) != pgerr.InternalError {
		t.Errorf("run without a session: %v", err)
	}
}

// count gives the one number of a prepared count, or the SQLSTATE.
func count(ctx context.Context, p Prepared, sess Session) string {
	node, err := p.Run(ctx, &exec.Env{Caller: sess, Now: moment}, nil)
	if err != nil {
		return pgerr.Code(err)
	}
	defer node.Close()
	batch, err := node.Next(ctx)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(batch.Value(0, 0).Int())
}

// TestRecordFailure: what was done stays done when the event can't be recorded; the client gets a WARNING. A client
// that has gone meanwhile does not keep the event from being recorded.
func TestRecordFailure(t *testing.T) {
	f := newFixture(t)
	schema := f.schema()
	schema.in.Events = &lostEvents{}
	parsed, err := sqlparse.Parse("CALL neki.reload()")
	if err != nil {
		t.Fatal(err)
	}
	p, err := schema.Prepare(people["oscar"], parsed, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var notices []string
	note := func(n *pgerr.Error) { notices = append(notices, n.Severity+" "+n.Code) }
	if _, err := p.Run(t.Context(), &exec.Env{Caller: people["oscar"]}, note); err != nil {
		t.Errorf("reload: %v", err)
	}
	if len(f.done) != 1 || len(notices) != 1 || notices[0] != "WARNING 01000" {
		t.Errorf("done %v, notices %v", f.done, notices)
	}

	schema.in.Events = f
	before := len(f.events)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(gone, &exec.Env{Caller: people["oscar"]}, note); err != nil {
		t.Errorf("reload: %v", err)
	}
	if len(f.events) != before+1 {
		t.Errorf("no event of a call whose client went away")
	}
}

type lostEvents struct{}

func (lostEvents) Events(context.Context) ([]catalog.Event, error) { return nil, nil }

func (lostEvents) Record(context.Context, catalog.Event) error {
	return errors.New("the store is away")
}
