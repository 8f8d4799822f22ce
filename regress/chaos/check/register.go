package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// RegisterKind is what is done to a register.
type RegisterKind uint8

// The operations on a register.
const (
	Read RegisterKind = iota
	Write
	Swap // sets New if the value is Old
)

// RegisterOp is one statement on one row.
type RegisterOp struct {
	Span
	Client  int
	Key     int64
	Kind    RegisterKind
	Old     int64 // Swap: what is expected
	New     int64 // Write, Swap: what is set
	Value   int64 // Read: what was read
	Swapped bool  // Swap: whether it was done
	Outcome Outcome
}

// registerModel is a register whose operations may have an unknown outcome: those return at the end of time, so that they
// may take effect at any time, or after everything that could see them.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			at, op := state.(int64), input.(RegisterOp)
			switch {
			case op.Kind == Read:
				return op.Value == at, at
			case op.Kind == Write:
				return true, op.New
			case op.Outcome == OK && op.Swapped != (at == op.Old):
				return false, at
			case at == op.Old:
				return true, op.New
			}
			return true, at
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}
}

// Registers checks that each key behaves like one register that is 0 at first: every operation takes effect at one moment
// between its beginning and its end. A key whose search takes longer than limit is a violation, too: nothing is known of it.
func Registers(ops []RegisterOp, limit time.Duration) []Violation {
	var found list
	byKey := map[int64][]porcupine.Operation{}
	for _, op := range ops {
		if op.Outcome == Failed || op.Outcome == Unknown && op.Kind == Read {
			continue
		}
		end := int64(op.Ended)
		if op.Outcome == Unknown {
			end = math.MaxInt64
		}
		byKey[op.Key] = append(byKey[op.Key], porcupine.Operation{
			ClientId: op.Client, Input: op, Call: int64(op.Began), Output: op, Return: end,
		})
	}
	keys := make([]int64, 0, len(byKey))
	for k := range byKey {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		switch porcupine.CheckOperationsTimeout(registerModel(), byKey[k], limit) {
		case porcupine.Illegal:
			found.add("not linearizable", "key %d, %d operations:%s", k, len(byKey[k]), history(byKey[k]))
		case porcupine.Unknown:
			found.add("not decided", "key %d, %d operations: the search took longer than %v", k, len(byKey[k]), limit)
		}
	}
	return found.all
}

// history lists operations in the order in which they began, for who must find out what went wrong.
func history(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var text strings.Builder
	for _, o := range ops {
		op := o.Input.(RegisterOp)
		fmt.Fprintf(&text, "\n%v to %v, outcome %d: ", op.Began, op.Ended, op.Outcome)
		switch op.Kind {
		case Read:
			fmt.Fprintf(&text, "read %d", op.Value)
		case Write:
			fmt.Fprintf(&text, "write %d", op.New)
		case Swap:
			fmt.Fprintf(&text, "swap %d for %d: %v", op.Old, op.New, op.Swapped)
		}
	}
	return text.String()
}
