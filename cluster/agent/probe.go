package agent

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// probes keeps asking until ctx ends. It is apart from the sampler, which a hung postmaster must not hold up.
func (a *Agent) probes(ctx context.Context) error {
	failures := 0
	return every(ctx, probeEvery, func(time.Time) {
		var failed *error
		if a.pg.Ready() {
			if err := a.probe(ctx); err != nil && ctx.Err() == nil {
				failed = &err
			}
		}
		if failed == nil {
			failures = 0
		} else {
			failures++
		}
		a.hung.Store(failures >= hungAfter)
		if before := a.probed.Swap(failed); (before == nil) != (failed == nil) {
			a.interruptSample()
			a.sampleNow()
		}
	})
}

// every calls do at each tick, one after the other, until ctx ends.
func every(ctx context.Context, interval time.Duration, do func(now time.Time)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			do(now)
		}
	}
}

// hungAfter is how many probes in a row must fail for the server to count as hung.
const hungAfter = 2

// probe asks whether a new connection is answered: a stopped postmaster leaves old sessions working. It sends
// SSLRequest, which the server answers from a child it has just forked, before any authentication, and which costs a
// fraction of a login.
func (a *Agent) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", filepath.Join(a.pg.SocketDir(), ".s.PGSQL."+strconv.Itoa(a.pg.Port())))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing more is said
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := c.Write([]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}); err != nil { // SSLRequest, 80877103
		return err
	}
	var answer [1]byte
	if _, err := c.Read(answer[:]); err != nil {
		return err
	}
	if answer[0] != 'N' && answer[0] != 'S' {
		return fmt.Errorf("unexpected answer %q to SSLRequest", answer[0])
	}
	return nil
}
