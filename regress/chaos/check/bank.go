package check

// Balance is one read of all accounts in one transaction.
type Balance struct {
	Span
	Where string
	Sum   int64
	Least int64 // the smallest account
}

// Bank checks that transfers, whatever became of them, neither made nor lost money, and overdrew no account.
func Bank(reads []Balance, sum int64) []Violation {
	var found list
	for _, r := range reads {
		if r.Sum != sum {
			found.add("wrong sum", "%s read %d at %v, not %d", r.Where, r.Sum, r.Began, sum)
		}
		if r.Least < 0 {
			found.add("overdrawn", "%s read an account of %d at %v", r.Where, r.Least, r.Began)
		}
	}
	return found.all
}
