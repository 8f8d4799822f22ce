package adminsql

import (
	"fmt"

	"neki/internal/pgerr"
)

// Stable numbers of what this package does not do, as NK013's message shows them. The first is pooler/plan's too,
// which refuses most such statements before they come here.
const (
	notImplementedJoin     = 101 // neki relations and tables of the shards in one statement
	notImplementedFunction = 201 // a documented function whose subject does not exist yet
)

func notImplemented(number int, what string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [%d] %s", number, fmt.Sprintf(what, args...))
}
