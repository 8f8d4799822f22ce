package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"neki/internal/pgerr"
)

// PreparedOrder ends prepared transactions of commits over several shards, and asks for those that there are then.
type PreparedOrder struct {
	Finish []FinishPrepared `json:"finish,omitempty"`
	// Settle asks for proof that what was ended before is as durable as a commit.
	Settle bool `json:"settle,omitempty"`
}

// FinishPrepared is what is to become of one transaction.
type FinishPrepared struct {
	GID      string `json:"gid"`
	Database string `json:"database"`
	Commit   bool   `json:"commit"`
}

// PreparedStatus are the prepared transactions of a primary whose names are a gateway's.
type PreparedStatus struct {
	Transactions []PreparedTransaction `json:"transactions,omitempty"`
	Failed       []string              `json:"failed,omitempty"` // why some could not be ended
	// Settled: a commit made after the look was acknowledged, so all that was ended before it is, too.
	Settled bool `json:"settled"`
}

// PreparedTransaction is one.
type PreparedTransaction struct {
	GID      string        `json:"gid"`
	Database string        `json:"database"`
	Age      time.Duration `json:"age_ns"`
}

// preparedLimit bounds what is done for one order, which waits for standbys.
const preparedLimit = 10 * time.Second

const preparedQuery = `SELECT gid, database, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE gid LIKE 'neki:%' ORDER BY prepared`

// Prepared ends prepared transactions and lists the others.
func (c *Client) Prepared(ctx context.Context, o PreparedOrder) (PreparedStatus, error) {
	var s PreparedStatus
	return s, c.call(ctx, http.MethodPost, "prepared", o, &s)
}

// handlePrepared answers at once, beside the runner: it changes nothing that orders are about.
func (a *Agent) handlePrepared(w http.ResponseWriter, req *http.Request) {
	var o PreparedOrder
	if !readBody(w, req, "prepared", &o) {
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), preparedLimit)
	defer cancel()
	if a.shut() {
		writeJSON(w, http.StatusConflict, problemOf(pgerr.New(pgerr.ObjectNotInPrerequisiteState, "node %s takes no clients", a.cfg.Node)))
		return
	}
	s, err := FinishAll(ctx, o, func(ctx context.Context, database string, warned func()) (*pgx.Conn, error) {
		cfg, err := a.connConfig(database, preparedLimit)
		if err != nil {
			return nil, err
		}
		return connectSettled(ctx, cfg, warned)
	})
	if err != nil {
		writeJSON(w, http.StatusConflict, problemOf(err))
		return
	}
	writeJSON(w, http.StatusOK, s)
}

// connectSettled connects such that commits wait for standbys, and calls warned when one has given up waiting.
func connectSettled(ctx context.Context, cfg *pgx.ConnConfig, warned func()) (*pgx.Conn, error) {
	cfg.RuntimeParams["synchronous_commit"] = "on"
	cfg.RuntimeParams["client_min_messages"] = "warning"
	cfg.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { warned() }
	return pgx.ConnectConfig(ctx, cfg)
}

// ConnectDatabase connects to a database of an instance as its superuser; warned is to be called at every notice.
type ConnectDatabase func(ctx context.Context, database string, warned func()) (*pgx.Conn, error)

// FinishAll does what the order says on a primary.
func FinishAll(ctx context.Context, o PreparedOrder, connect ConnectDatabase) (PreparedStatus, error) {
	var s PreparedStatus
	for _, f := range o.Finish {
		if err := finishOne(ctx, f, connect); err != nil {
			s.Failed = append(s.Failed, f.GID+": "+err.Error())
		}
	}
	warned := false
	conn, err := connect(ctx, "postgres", func() { warned = true })
	if err != nil {
		return s, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the queries' errors count
	var recovery bool
	if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery); err != nil {
		return s, err
	}
	if recovery {
		return s, pgerr.New(pgerr.ObjectNotInPrerequisiteState, "the instance is a standby")
	}
	rows, err := conn.Query(ctx, preparedQuery)
	if err != nil {
		return s, err
	}
	s.Transactions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t PreparedTransaction, err error) {
		var age float64
		err = row.Scan(&t.GID, &t.Database, &age)
		t.Age = time.Duration(age * float64(time.Second))
		return t, err
	})
	if err != nil || !o.Settle {
		return s, err
	}
	_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'neki', 'settled')")
	s.Settled = err == nil && !warned
	return s, nil
}

// finishOne ends one transaction; one that is not there has been ended.
func finishOne(ctx context.Context, f FinishPrepared, connect ConnectDatabase) error {
	conn, err := connect(ctx, f.Database, func() {})
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the statement's error counts
	verb := "ROLLBACK"
	if f.Commit {
		verb = "COMMIT"
	}
	_, err = conn.PgConn().Exec(ctx, verb+" PREPARED '"+strings.ReplaceAll(f.GID, "'", "''")+"'").ReadAll()
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == pgerr.UndefinedObject {
		return nil
	}
	return err
}
