package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"neki/catalog"
	"neki/catalog/memstore"
	"neki/internal/pgerr"
)

// jobWorld is a leader's runner over a store in memory, in a synctest bubble.
type jobWorld struct {
	t     *testing.T
	store catalog.Store
	live  *catalog.Live
	end   []func()
}

func newJobWorld(t *testing.T) *jobWorld {
	store := memstore.New()
	w := &jobWorld{t: t, store: store, live: catalog.NewLive(store, "c", slog.New(slog.DiscardHandler))}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.live.Run(ctx) }()
	<-w.live.Ready()
	w.end = append(w.end, func() { cancel(); <-ended; _ = store.Close() })
	return w
}

func (w *jobWorld) close() {
	for i := len(w.end) - 1; i >= 0; i-- {
		w.end[i]()
	}
}

// lead begins a time of leading and gives how it ends.
func (w *jobWorld) lead(id string, kinds map[string]jobKind) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	lease, err := w.store.Lease(ctx, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	epoch, err := catalog.AcquireLeader(ctx, lease, "c", catalog.Admin{ID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	a, err := New(Config{Cluster: "c", ID: id, Store: w.store, Live: w.live})
	if err != nil {
		w.t.Fatal(err)
	}
	r := newJobRunner(&leader{a: a, epoch: epoch})
	r.kinds = kinds
	var loops errgroup.Group
	loops.Go(func() error {
		for ctx.Err() == nil {
			changed := w.live.Changed()
			r.look(ctx, w.live.Snapshot(), &loops)
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		return nil
	})
	return func() {
		cancel()
		_ = loops.Wait()
		if err := lease.Close(); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *jobWorld) put(j catalog.Job) catalog.Job {
	w.t.Helper()
	j, _, err := catalog.PutJob(w.t.Context(), w.store, "c", j)
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

// job gives a job as it is when nothing moves any more.
func (w *jobWorld) job(id string) catalog.Job {
	w.t.Helper()
	synctest.Wait()
	j, err := catalog.GetJob(w.t.Context(), w.store, "c", id)
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func TestJobIsCarriedOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		var calls atomic.Int32
		defer w.lead("a1", map[string]jobKind{"copy": {run: func(_ context.Context, j catalog.Job, r *Report) error {
			calls.Add(1)
			r.Step(.25, "copies %s", j.Node)
			time.Sleep(time.Second)
			r.Bytes(50, 100, .2, .8)
			time.Sleep(time.Second)
			return nil
		}}})()
		j := w.put(catalog.Job{Kind: "copy", Node: "n1", Key: "copy n1"})
		again, fresh, err := catalog.PutJob(t.Context(), w.store, "c", catalog.Job{Kind: "copy", Node: "n1", Key: "copy n1"})
		if err != nil || fresh || again.ID != j.ID {
			t.Errorf("the same request: %s, fresh %t, %v; want %s", again.ID, fresh, err, j.ID)
		}
		if got := w.job(j.ID); got.State != catalog.JobRunning || got.Step != "copies n1" || got.Progress != .25 {
			t.Errorf("begun: %+v", got)
		}
		time.Sleep(1500 * time.Millisecond)
		if got := w.job(j.ID); got.Progress != .5 || got.BytesDone != 50 {
			t.Errorf("half: %+v", got)
		}
		time.Sleep(time.Second)
		if got := w.job(j.ID); got.State != catalog.JobDone || got.Progress != 1 || got.FinishedAt.IsZero() || calls.Load() != 1 {
			t.Errorf("end: %+v after %d calls", got, calls.Load())
		}
		if next := w.put(catalog.Job{Kind: "copy", Node: "n1", Key: "copy n1"}); next.ID == j.ID {
			t.Error("a job that has ended was given for a new request")
		}
		events, err := catalog.ListEvents(t.Context(), w.store, "c", 10)
		if err != nil || len(events) != 1 || events[0].Kind != "copy" {
			t.Errorf("events: %v, %v", events, err)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
	})
}

// A job that fails is tried again after a pause, and given up in the end; one that says so fails at once.
func TestJobFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		var calls atomic.Int32
		defer w.lead("a1", map[string]jobKind{
			"twice": {run: func(context.Context, catalog.Job, *Report) error {
				if calls.Add(1) < 3 {
					return errors.New("not yet")
				}
				return nil
			}},
			"never": {run: func(context.Context, catalog.Job, *Report) error { return errors.New("broken") }},
			"wrong": {run: func(context.Context, catalog.Job, *Report) error {
				return giveUp(pgerr.New(pgerr.UndefinedObject, "no such node").WithHint("Look."))
			}},
		})()
		twice, never, wrong := w.put(catalog.Job{Kind: "twice"}), w.put(catalog.Job{Kind: "never"}), w.put(catalog.Job{Kind: "wrong"})
		unknown := w.put(catalog.Job{Kind: "unheard"})
		if got := w.job(wrong.ID); got.State != catalog.JobFailed || got.Error != "no such node" || got.Hint != "Look." || got.Attempts != 0 {
			t.Errorf("wrong: %+v", got)
		}
		if got := w.job(unknown.ID); got.State != catalog.JobFailed {
			t.Errorf("unknown: %+v", got)
		}
		if got := w.job(twice.ID); got.State != catalog.JobRunning || got.Error != "not yet" || got.Attempts != 1 {
			t.Errorf("twice, at first: %+v", got)
		}
		time.Sleep(2 * time.Minute)
		if got := w.job(twice.ID); got.State != catalog.JobDone || got.Error != "" || got.Attempts != 2 {
			t.Errorf("twice, at last: %+v", got)
		}
		if got := w.job(never.ID); got.State != catalog.JobFailed || got.Error != "broken" {
			t.Errorf("never: %+v", got)
		}
	})
}

// Jobs of one shard and of one host come one after the other; others don't wait for them.
func TestJobsOfOneShardTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		slow := func(context.Context, catalog.Job, *Report) error { time.Sleep(time.Minute); return nil }
		defer w.lead("a1", map[string]jobKind{"slow": {run: slow}, "beside": {run: slow, beside: true}})()
		first := w.put(catalog.Job{Kind: "slow", Shard: "sh1", Host: "h1"})
		synctest.Wait()
		second, host := w.put(catalog.Job{Kind: "slow", Shard: "sh1"}), w.put(catalog.Job{Kind: "slow", Host: "h1"})
		other, beside := w.put(catalog.Job{Kind: "slow", Shard: "sh2"}), w.put(catalog.Job{Kind: "beside", Shard: "sh1"})
		for id, want := range map[string]catalog.JobState{
			first.ID: catalog.JobRunning, second.ID: catalog.JobPending, host.ID: catalog.JobPending,
			other.ID: catalog.JobRunning, beside.ID: catalog.JobRunning,
		} {
			if got := w.job(id); got.State != want {
				t.Errorf("%+v: want %s", got, want)
			}
		}
		time.Sleep(3 * time.Minute)
		for _, j := range w.live.Snapshot().Jobs {
			if j.State != catalog.JobDone {
				t.Errorf("%+v", j)
			}
		}
	})
}

func TestJobIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		wait := func(ctx context.Context, _ catalog.Job, _ *Report) error { <-ctx.Done(); return ctx.Err() }
		defer w.lead("a1", map[string]jobKind{"wait": {run: wait}})()
		running := w.put(catalog.Job{Kind: "wait", Shard: "sh1"})
		synctest.Wait()
		pending := w.put(catalog.Job{Kind: "wait", Shard: "sh1"})
		synctest.Wait()
		for _, id := range []string{pending.ID, running.ID} {
			if _, err := catalog.CancelJob(t.Context(), w.store, "c", id, "oscar"); err != nil {
				t.Fatal(err)
			}
			if got := w.job(id); got.State != catalog.JobCancelled || got.Error != "cancelled by oscar" {
				t.Errorf("%+v", got)
			}
		}
	})
}

// The next leader goes on with what the last one had begun, and knows what that remembered; the last one writes nothing more.
func TestJobOutlivesItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		var found atomic.Value
		run := func(ctx context.Context, j catalog.Job, r *Report) error {
			if place, ok := j.Memo["place"]; ok {
				found.Store(place)
				return nil
			}
			if err := r.Remember(ctx, "place", "half way"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}
		stop := w.lead("a1", map[string]jobKind{"resume": {run: run}})
		j := w.put(catalog.Job{Kind: "resume"})
		synctest.Wait()
		stop()
		if got := w.job(j.ID); got.State != catalog.JobRunning {
			t.Errorf("between leaders: %+v", got)
		}
		if _, err := catalog.UpdateJob(t.Context(), w.store, "c", 1, j.ID, func(*catalog.Job) {}); !errors.Is(err, catalog.ErrConflict) {
			t.Errorf("a write of a leader that is none: %v", err)
		}
		defer w.lead("a2", map[string]jobKind{"resume": {run: run}})()
		if got := w.job(j.ID); got.State != catalog.JobDone || found.Load() != "half way" {
			t.Errorf("%+v, found %v", got, found.Load())
		}
	})
}

func TestOldJobsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		defer w.close()
		defer w.lead("a1", map[string]jobKind{"quick": {run: func(context.Context, catalog.Job, *Report) error { return nil }}})()
		for i := range catalog.KeptJobs + 5 {
			w.put(catalog.Job{Kind: "quick", Target: fmt.Sprint(i)})
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if jobs := w.live.Snapshot().Jobs; len(jobs) > catalog.KeptJobs+1 || jobs[len(jobs)-1].Target != fmt.Sprint(catalog.KeptJobs+4) {
			t.Errorf("%d jobs", len(jobs))
		}
	})
}
