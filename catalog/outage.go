package catalog

import "log/slog"

// Outage logs that something fails once when it begins and once when it ends, however often it is tried in between. One
// goroutine owns it.
type Outage struct {
	Log  *slog.Logger
	What string // "registration in the catalog"

	down bool
}

// Failed notes a failure.
func (o *Outage) Failed(err error) {
	if o.down {
		o.Log.Debug(o.What+" still fails", "error", err)
		return
	}
	o.down = true
	o.Log.Warn(o.What+" fails; trying again", "error", err)
}

// Worked notes that it works.
func (o *Outage) Worked() {
	if o.down {
		o.down = false
		o.Log.Info(o.What + " works again")
	}
}
