package exec

import (
	"sync/atomic"

	"neki/internal/pgerr"
)

// Budget bounds the bytes that runs may keep. One Budget may be shared by many runs; a nil Budget has no bound.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget makes a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used gives the bytes taken now.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Take takes n bytes, for what a source keeps. They are given back with Give.
func (b *Budget) Take(n int64) error { return b.take(n) }

// Give gives n bytes back.
func (b *Budget) Give(n int64) { b.give(n) }

func (b *Budget) take(n int64) error {
	if b == nil {
		return nil
	}
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return pgerr.New(pgerr.OutOfMemory, "out of memory").
			WithDetail("The query needs more than the %d bytes that queries at the gateway may use.", b.limit).
			WithHint("Narrow the query with WHERE or LIMIT.")
	}
	return nil
}

func (b *Budget) give(n int64) {
	if b != nil {
		b.used.Add(-n)
	}
}

// account is what one node took from the budget.
type account struct {
	budget *Budget
	taken  int64 // paid
	owed   int64 // not yet taken: small amounts are collected
}

// accountGrain is the least amount taken at once: an atomic operation per row would be felt.
const accountGrain = 16 << 10

func (a *account) take(n int64) error {
	a.owed += n
	if a.owed < accountGrain {
		return nil
	}
	n, a.owed = a.owed, 0
	if err := a.budget.take(n); err != nil {
		return err
	}
	a.taken += n
	return nil
}

func (a *account) close() {
	a.budget.give(a.taken)
	a.taken, a.owed = 0, 0
}
