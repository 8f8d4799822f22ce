package pgerr

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestFrom(t *testing.T) {
	own := New(NoEligibleReplica, "no eligible replica for shard %q", "sh1").WithDetail("lag 17m > 15m")
	for _, tc := range []struct {
		name string
		err  error
		code string
	}{
		{"own, wrapped", fmt.Errorf("leg 2: %w", own), NoEligibleReplica},
		{"postgres", fmt.Errorf("x: %w", &pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR"}), "23505"},
		{"cancelled", fmt.Errorf("x: %w", context.Canceled), QueryCanceled},
		{"deadline", context.DeadlineExceeded, QueryCanceled},
		{"other", errors.New("boom"), InternalError},
	} {
		if got := From(tc.err); got.Code != tc.code {
			t.Errorf("%s: code %s, want %s", tc.name, got.Code, tc.code)
		}
	}
	if From(nil) != nil {
		t.Error("From(nil) is not nil")
	}
	if !errors.Is(From(fmt.Errorf("x: %w", context.Canceled)), context.Canceled) {
		t.Error("the cause is lost")
	}
}

func TestResponseRoundTrip(t *testing.T) {
	e := &Error{
		Severity: "ERROR", Code: "23505", Message: "m", Detail: "d", Hint: "h", Position: 3, InternalPosition: 4,
		InternalQuery: "q", Where: "w", Schema: "s", Table: "t", Column: "c", DataType: "dt", Constraint: "k",
		File: "f", Line: 5, Routine: "r",
	}
	var decoded pgproto3.ErrorResponse
	wire, err := e.Response().Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := decoded.Decode(wire[5:]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, FromResponse(&decoded), cmpopts.IgnoreUnexported(Error{})); diff != "" {
		t.Error(diff)
	}
}

func TestFromResponseWithoutSQLState(t *testing.T) {
	if e := FromResponse(&pgproto3.ErrorResponse{Message: "m"}); e.Code != InternalError || e.Severity != SeverityError {
		t.Errorf("got %+v", e)
	}
}

func TestWithCopies(t *testing.T) {
	e := New(InternalError, "m")
	if e.WithHint("h"); e.Hint != "" {
		t.Error("WithHint changed its receiver")
	}
}

func TestNearest(t *testing.T) {
	names := []string{"target", "replica_recency", "replica_locality", "shard"}
	for _, tc := range []struct{ in, want string }{
		{"taget", "target"},
		{"TARGTE", "target"},
		{"replica_recncy", "replica_recency"},
		{"shrad", "shard"},
		{"zzzz", ""},
		{"", ""},
	} {
		if got := Nearest(tc.in, names); got != tc.want {
			t.Errorf("Nearest(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}
