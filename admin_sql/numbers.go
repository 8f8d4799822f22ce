package adminsql

import (
	"fmt"

	"neki/internal/pgerr"
)

// Stable numbers of what this package does not do, as NK013's message shows them.
const (
	notImplementedJoin      = 901 // neki relations and tables of the shards in one statement
	notImplementedFunction  = 902 // a documented function whose subject does not exist yet
	notImplementedList      = 903 // a neki function outside FROM
	notImplementedForm      = 904 // a neki relation in COPY, DECLARE, CREATE TABLE AS ...
	notImplementedRangeForm = 905 // ROWS FROM, WITH ORDINALITY, a column definition list
)

func notImplemented(number int, what string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [%d] %s", number, fmt.Sprintf(what, args...))
}
