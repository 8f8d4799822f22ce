package adminsql

import (
	"context"

	"neki/exec"
	"neki/internal/pgerr"
)

// Prepared is a statement over the neki schema made ready to run: a query, or a CALL. It is immutable and may be run
// by many sessions at once.
type Prepared interface {
	// Columns gives the result's columns; nil for a CALL that gives no row.
	Columns() []exec.Column
	// ParamTypes gives the types of $1, $2, ... as given or inferred.
	ParamTypes() []uint32
	// Tag is the command tag, SELECT (without its count of rows) or CALL.
	Tag() string
	// Run checks the rights of the session, which is env.Caller, and runs the statement. For a query it gives a node to
	// read rows from and to close; ctx and env must live until then. A CALL has run when Run returns, and the node
	// is nil unless it gives a row. notice sends a NOTICE or WARNING to the client; nil drops them.
	Run(ctx context.Context, env *exec.Env, notice func(*pgerr.Error)) (exec.Node, error)
}
