package adminsql

import (
	"fmt"

	"neki/internal/pgerr"
)

// notImplementedJoin is the stable number of neki relations and tables of the shards in one statement, as NK013's message
// shows it. It is pooler/plan's too, which refuses most such statements before they come here.
const notImplementedJoin = 101

func notImplemented(number int, what string, args ...any) *pgerr.Error {
	return pgerr.New(pgerr.NotImplemented, "not implemented: [%d] %s", number, fmt.Sprintf(what, args...))
}
