package backend

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"neki/internal/pgerr"
	"neki/settings"
)

// patient is a Waiter that notes what it is told.
type patient struct {
	ticket  *Ticket
	refused error
	places  []int
}

func (w *patient) Ticket() *Ticket           { return w.ticket }
func (w *patient) Queued() error             { return w.refused }
func (w *patient) InterruptCause() error     { return errGone }
func (w *patient) Waiting(place int, _ bool) { w.places = append(w.places, place) }

var errGone = errors.New("gone")

// fullPool gives a pool whose only connection is leased: sc.
func fullPool(limit time.Duration) (p *Pool, sc *ServerConn) {
	params := settings.DefaultParameters()
	params.PoolCapacity, params.PoolMaxWait = 1, limit
	pools := &Pools{cfg: Config{Parameters: func() *settings.Parameters { return &params }}, ctx: context.Background()}
	p = &Pool{pools: pools, open: 1}
	sc = &ServerConn{pool: p, status: 'I', retire: time.Now().Add(24 * time.Hour), opened: time.Now()}
	return p, sc
}

// waiterOf begins a wait and gives its end.
func waiterOf(p *Pool, w *patient) <-chan grant {
	end := make(chan grant, 1)
	go func() {
		sc, err := p.Acquire(nil, w, time.Now())
		end <- grant{sc: sc, err: err}
	}()
	synctest.Wait()
	return end
}

func TestWaitersGetConnectionsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, sc := fullPool(0)
		w := [3]*patient{{ticket: NewTicket()}, {ticket: NewTicket()}, {ticket: NewTicket()}}
		var ends [3]<-chan grant
		for i := range w {
			ends[i] = waiterOf(p, w[i])
		}
		w[1].ticket.Interrupt()
		if g := <-ends[1]; !errors.Is(g.err, errGone) {
			t.Errorf("an interrupted wait ended with %v", g.err)
		}
		for _, i := range []int{0, 2} {
			p.Release(sc, time.Now())
			if g := <-ends[i]; g.sc != sc || g.err != nil {
				t.Errorf("waiter %d got %v, %v", i, g.sc, g.err)
			}
		}
		w[2].ticket.Interrupt() // it waits no more: nothing must stay behind for its next wait
		again := waiterOf(p, w[2])
		p.Release(sc, time.Now())
		if g := <-again; g.sc != sc {
			t.Errorf("the second wait of a ticket ended with %v", g.err)
		}
	})
}

func TestAWaitRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, sc := fullPool(0)
		if _, err := p.Acquire(nil, &patient{ticket: NewTicket(), refused: errGone}, time.Now()); !errors.Is(err, errGone) {
			t.Error(err)
		}
		p.Release(sc, time.Now())
		if row := p.row(1); row.Idle != 1 || row.Waiting != 0 {
			t.Errorf("%+v", row)
		}
	})
}

func TestWaitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, sc := fullPool(8 * time.Second)
		first, second := &patient{ticket: NewTicket()}, &patient{ticket: NewTicket()}
		one := waiterOf(p, first)
		time.Sleep(3 * time.Second)
		two := waiterOf(p, second)
		for range 20 { // up to 8 s after the first began
			time.Sleep(remindInterval)
			p.remind(time.Now())
			synctest.Wait()
		}
		if g := <-one; pgerr.Code(g.err) != pgerr.TooManyConnections {
			t.Errorf("the first wait ended with %v", g.err)
		}
		if row := p.row(1); row.Waiting != 1 || row.MaxWait != 20*remindInterval {
			t.Errorf("while the second waits: %+v", row)
		}
		p.Release(sc, time.Now())
		if g := <-two; g.sc != sc {
			t.Errorf("the second wait ended with %v", g.err)
		}
		if len(first.places) != 1 || first.places[0] != 1 || len(second.places) != 1 || second.places[0] != 1 {
			t.Errorf("told %v and %v", first.places, second.places)
		}
		if row := p.row(1); row.MaxWait != 0 {
			t.Errorf("nobody waits, and yet: max wait %v", row.MaxWait)
		}
	})
}
