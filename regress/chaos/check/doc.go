// Package check judges histories of what clients saw: whether an acknowledged commit is missing, whether single rows
// behave like one register, whether transactions could have run one after the other, whether money is conserved, and
// whether the cluster's own records of who led and who acknowledged agree with what happened.
//
// A history is what clients noted, on one clock. An operation is OK when it was acknowledged, Failed when an error said
// that it did not happen, Unknown when its outcome is not known: it may have happened, then or at any time later.
//
// All functions are pure: they start no goroutine (Porcupine's end with the call that started them) and are safe for
// concurrent use.
//
// The definitions of the anomalies of transactions: https://pmg.csail.mit.edu/papers/adya-phd.pdf. Reading the order of
// versions off lists: https://www.vldb.org/pvldb/vol14/p268-alvaro.pdf.
package check

import (
	"fmt"
	"time"
)

// Outcome is what a client knows of an operation.
type Outcome uint8

// The outcomes.
const (
	OK Outcome = iota
	Failed
	Unknown
)

func (o Outcome) String() string { return [...]string{"ok", "failed", "unknown"}[o] }

// Span is when an operation was under way, by the one clock of the history.
type Span struct{ Began, Ended time.Duration }

// Violation is one thing that must not be.
type Violation struct {
	Kind   string
	Detail string
}

func (v Violation) String() string { return v.Kind + ": " + v.Detail }

// most bounds the violations of one kind that are told; one is enough to fail.
const most = 10

// list gathers violations.
type list struct {
	all  []Violation
	seen map[string]int
}

func (l *list) add(kind, format string, args ...any) {
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	if l.seen[kind]++; l.seen[kind] > most {
		return
	}
	l.all = append(l.all, Violation{Kind: kind, Detail: fmt.Sprintf(format, args...)})
}
