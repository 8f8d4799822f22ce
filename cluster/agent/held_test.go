package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The word of every gateway is waited for, of the order's term and not of an earlier one, and not for ever.
func TestAwaitHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h holders
		o := FenceOrder{Order: Order{Term: 3, Sub: 5}, Gateways: []string{"gw1", "gw2"}}
		h.note(Held{"gw1", 3, 5})
		h.note(Held{"gw2", 3, 4})
		began := time.Now()
		if list := h.awaitHeld(t.Context(), o, time.Second); !slices.Equal(list, []string{"gw2"}) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", list, time.Since(began))
		}
		go func() {
			time.Sleep(10 * time.Millisecond)
			h.note(Held{"gw3", 3, 5})
			h.note(Held{"gw2", 2, 9})
			time.Sleep(10 * time.Millisecond)
			h.note(Held{"gw2", 3, 5})
		}()
		began = time.Now()
		if list := h.awaitHeld(t.Context(), o, time.Second); list != nil || time.Since(began) != 20*time.Millisecond {
			t.Errorf("%v after %v", list, time.Since(began))
		}
		if list := h.awaitHeld(t.Context(), FenceOrder{}, time.Second); list != nil {
			t.Errorf("%v of none", list)
		}
	})
}
