package catalog

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRingLag(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return t0.Add(d) }
	var r Ring
	if _, known := r.Lag(t0, 5); known {
		t.Error("an empty ring knows a lag")
	}
	r.Add(at(0), 100)
	r.Add(at(1*time.Second), 200)
	r.Add(at(2*time.Second), 300)
	r.Add(at(3*time.Second), 300) // idle since
	now := at(10 * time.Second)
	for _, tc := range []struct {
		replay LSN
		lag    time.Duration
		known  bool
	}{
		{300, 0, true},
		{301, 0, true},
		{299, 8 * time.Second, true},
		{200, 8 * time.Second, true},
		{199, 9 * time.Second, true},
		{100, 9 * time.Second, true},
		{99, 10 * time.Second, false}, // the ring can't tell since when
		{0, 10 * time.Second, false},
	} {
		if lag, known := r.Lag(now, tc.replay); lag != tc.lag || known != tc.known {
			t.Errorf("Lag(%d) = %s, %t; want %s, %t", tc.replay, lag, known, tc.lag, tc.known)
		}
	}
	r.Add(at(11*time.Second), 50) // another history
	if lag, known := r.Lag(now, 50); lag != 0 || !known {
		t.Errorf("after a reset: %s, %t", lag, known)
	}
}

// TestRingGap: where no sample was taken for long, the log may have grown at any time in between.
func TestRingGap(t *testing.T) {
	t0 := time.Unix(1000, 0)
	var r Ring
	r.Add(t0, 100)
	r.Add(t0.Add(time.Minute), 900)
	if lag, _ := r.Lag(t0.Add(time.Minute), 100); lag != time.Minute {
		t.Errorf("lag %s is less than it may be", lag)
	}
	r = Ring{}
	r.Add(t0, 100)
	r.Add(t0.Add(59*time.Second), 100) // seen idle until then
	r.Add(t0.Add(time.Minute), 900)
	if lag, _ := r.Lag(t0.Add(time.Minute), 100); lag != 0 {
		t.Errorf("lag %s on a primary that was idle", lag)
	}
}

// primaryLog is a primary whose log grows as drawn, sampled every 250 ms: what a Ring is to remember.
func primaryLog(t *rapid.T) []Sample {
	n := rapid.IntRange(1, 20_000).Draw(t, "samples")
	busy := rapid.IntRange(1, 10).Draw(t, "busy")
	lsn := LSN(1000)
	samples := make([]Sample, n)
	for i := range samples {
		if i%10 < busy {
			lsn += LSN(1 + i%7)
		}
		samples[i] = Sample{Age: time.Duration(i) * 250 * time.Millisecond, LSN: lsn} // Age as time since the start
	}
	return samples
}

func exactLag(samples []Sample, now time.Duration, replay LSN) time.Duration {
	for _, s := range samples {
		if s.LSN > replay {
			return now - s.Age
		}
	}
	return 0
}

func TestRingAgainstAllSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := primaryLog(t)
		t0 := time.Unix(1000, 0)
		var r, copied Ring
		for _, s := range samples {
			r.Add(t0.Add(s.Age), s.LSN)
		}
		if len(r.points) > 2200 {
			t.Fatalf("%d points kept", len(r.points))
		}
		end := samples[len(samples)-1].Age
		now := t0.Add(end)
		copied.Merge(now, r.Samples(now, 0))
		for range 20 {
			replay := LSN(rapid.Uint64Range(990, uint64(r.Newest())+5).Draw(t, "replay"))
			exact := exactLag(samples, end, replay)
			for name, ring := range map[string]*Ring{"ring": &r, "copy": &copied} {
				lag, known := ring.Lag(now, replay)
				if known && lag < exact {
					t.Fatalf("%s: Lag(%d) = %s, less than the true %s", name, replay, lag, exact)
				}
				if known && lag > exact+exact/thinning*2+time.Second {
					t.Fatalf("%s: Lag(%d) = %s, far from the true %s", name, replay, lag, exact)
				}
				if !known && replay >= 1008 && exact < horizon-horizon/32 {
					t.Fatalf("%s: Lag(%d) is unknown, true %s", name, replay, exact)
				}
				if !known && lag > exact {
					t.Fatalf("%s: Lag(%d) is at least %s, but true %s", name, replay, lag, exact)
				}
			}
		}
	})
}

// TestRingMerge: reports with what is new, some of which come late, amount to what the agent's own ring has.
func TestRingMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := primaryLog(t)
		samples = samples[:min(len(samples), 200)]
		t0 := time.Unix(1000, 0)
		const latest = 100 * time.Millisecond
		var agent, here Ring
		arrived := t0
		for i, s := range samples {
			agent.Add(t0.Add(s.Age), s.LSN)
			if i%4 == 3 {
				delay := time.Duration(rapid.Int64Range(0, int64(latest)).Draw(t, "delay"))
				at := t0.Add(s.Age + delay)
				if at.Before(arrived) {
					at = arrived
				}
				arrived = at
				here.Merge(at, agent.Samples(t0.Add(s.Age), 2*time.Second))
			}
		}
		if len(samples) < 4 {
			return
		}
		now := arrived
		replay := LSN(rapid.Uint64Range(1000, uint64(here.Newest())).Draw(t, "replay"))
		exact, known := agent.Lag(now, replay)
		lag, hereKnown := here.Lag(now, replay)
		if !known || !hereKnown {
			t.Skip("before the first sample")
		}
		if here.Newest() == agent.Newest() && (lag-exact).Abs() > latest+time.Second {
			t.Fatalf("Lag(%d) = %s here, %s at the agent", replay, lag, exact)
		}
	})
}
