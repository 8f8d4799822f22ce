package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// JobState is where a Job stands.
type JobState string

// The states of a Job. The last three are final.
const (
	JobPending   JobState = "pending" // nobody has begun it yet
	JobRunning   JobState = "running"
	JobDone      JobState = "done"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
)

// Final reports whether a job in this state has ended for good.
func (s JobState) Final() bool { return s == JobDone || s == JobFailed || s == JobCancelled }

// Job is a long action of the cluster, a row of neki.operations. It is asked for by a procedure, or by the leading admin
// itself, and carried out by the leading admin, whichever that is: a job that one has begun the next goes on with.
//
// What an operator asks of a shard's leadership is an Operation; it is shown as a job of the same ID, which the admin
// writes with the rule.
type Job struct {
	ID     string          `json:"id"` // sorts by the time it was asked for
	Kind   string          `json:"kind"`
	Target string          `json:"target,omitempty"` // what it is about, in words for users
	Shard  string          `json:"shard,omitempty"`  // uid: one job at a time for each shard ...
	Node   string          `json:"node,omitempty"`
	Host   string          `json:"host,omitempty"` // ... and for each host
	Args   json.RawMessage `json:"args,omitempty"`
	By     string          `json:"by,omitempty"`
	// Key is the same for requests that ask for the same: while a job of that key goes on, there is no second one.
	Key string    `json:"key,omitempty"`
	At  time.Time `json:"at,omitzero"` // when it was asked for

	State      JobState `json:"state"`
	Progress   float64  `json:"progress"` // 0 to 1
	Step       string   `json:"step,omitempty"`
	BytesDone  int64    `json:"bytes_done,omitempty"`
	BytesTotal int64    `json:"bytes_total,omitempty"`
	Attempts   int      `json:"attempts,omitempty"`
	// Memo is what a handler must know when it is called again.
	Memo       map[string]string `json:"memo,omitempty"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	FinishedAt time.Time         `json:"finished_at,omitzero"`
	Error      string            `json:"error,omitempty"`     // of the last attempt; of one done, none
	Code       string            `json:"code,omitempty"`      // the SQLSTATE, when the error is about what was asked
	Hint       string            `json:"hint,omitempty"`      // what to do about the error
	Cancel     string            `json:"cancel_by,omitempty"` // who wants it to end
	ModRev     int64             `json:"-"`
}

// KeptJobs is how many final jobs the catalog holds, the newest ones.
const KeptJobs = 200

// NewJobID makes an ID of a time.
func NewJobID(at time.Time) string {
	return strings.Replace(at.UTC().Format("20060102T150405.000000"), ".", "", 1)
}

// PutJob asks for a job; its ID, State and time are filled in. While one of the same Key goes on, that one is given, and
// fresh is false.
func PutJob(ctx context.Context, store Store, cluster string, j Job) (_ Job, fresh bool, err error) {
	if err := checkNames(cluster); err != nil {
		return j, false, err
	}
	j.State = JobPending
	if j.At.IsZero() {
		j.At = time.Now().UTC()
	}
	for ; ; j.At = j.At.Add(time.Microsecond) {
		j.ID = NewJobID(j.At)
		text, err := json.Marshal(j)
		if err != nil {
			return j, false, fmt.Errorf("catalog: encode a job: %w", err)
		}
		key := JobKey(cluster, j.ID)
		conds, ops := []Cond{Absent(key)}, []Op{PutOp(key, text)}
		if j.Key != "" {
			index := jobIndexKey(cluster, j.Key)
			conds, ops = append(conds, Absent(index)), append(ops, PutOp(index, []byte(j.ID)))
		}
		rev, err := store.Txn(ctx, conds, ops)
		if err == nil {
			j.ModRev = rev
			return j, true, nil
		}
		if !errors.Is(err, ErrConflict) {
			return j, false, fmt.Errorf("catalog: put a job: %w", err)
		}
		if running, err := runningJob(ctx, store, cluster, j.Key); err == nil {
			return running, false, nil
		} else if !errors.Is(err, ErrNotFound) {
			return j, false, err
		}
	}
}

// runningJob gives the job of a key that goes on, or ErrNotFound.
func runningJob(ctx context.Context, store Store, cluster, key string) (Job, error) {
	if key == "" {
		return Job{}, ErrNotFound
	}
	e, err := store.Get(ctx, jobIndexKey(cluster, key))
	if err != nil {
		return Job{}, fmt.Errorf("catalog: get the job of %q: %w", key, err)
	}
	return GetJob(ctx, store, cluster, string(e.Value))
}

// GetJob reads a job, linearizably.
func GetJob(ctx context.Context, store Store, cluster, id string) (Job, error) {
	var j Job
	if !ValidName(id) {
		return j, fmt.Errorf("catalog: job %q: %w", id, ErrNotFound)
	}
	e, err := getJSON(ctx, store, JobKey(cluster, id), &j)
	j.ModRev = e.ModRev
	return j, err
}

// CancelJob asks for the end of a job, which the admin ends when it sees that. It gives the job as it was; one that has
// ended stays as it is.
func CancelJob(ctx context.Context, store Store, cluster, id, by string) (Job, error) {
	for {
		j, err := GetJob(ctx, store, cluster, id)
		if err != nil || j.State.Final() || j.Cancel != "" {
			return j, err
		}
		j.Cancel = by
		_, err = putJSON(ctx, store, JobKey(cluster, id), j, j.ModRev)
		if !errors.Is(err, ErrConflict) {
			return j, err
		}
	}
}

// UpdateJob writes what the leading admin of an epoch did for a job, which change tells; it is asked again when another
// was faster. A job that has ended is never changed: ErrConflict, as for an admin that leads no more.
func UpdateJob(ctx context.Context, store Store, cluster string, epoch int64, id string, change func(*Job)) (Job, error) {
	for {
		j, err := GetJob(ctx, store, cluster, id)
		if err != nil {
			return j, err
		}
		if j.State.Final() {
			return j, fmt.Errorf("catalog: job %s has ended: %w", id, ErrConflict)
		}
		rev := j.ModRev
		change(&j)
		conds, ops, err := jobWrite(cluster, j, rev)
		if err != nil {
			return j, err
		}
		j.ModRev, err = store.Txn(ctx, append(conds, LeaderCond(cluster, epoch)), ops)
		if err == nil {
			return j, nil
		}
		if !errors.Is(err, ErrConflict) {
			return j, fmt.Errorf("catalog: put job %s: %w", id, err)
		}
		if now, err := store.Get(ctx, LeaderKey(cluster)); err != nil || now.CreateRev != epoch {
			return j, fmt.Errorf("catalog: put job %s: this admin leads no more: %w", id, ErrConflict)
		}
	}
}

// jobWrite gives the transaction that writes a job; one that ends frees its Key for the next.
func jobWrite(cluster string, j Job, rev int64) ([]Cond, []Op, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, nil, fmt.Errorf("catalog: encode job %s: %w", j.ID, err)
	}
	key := JobKey(cluster, j.ID)
	ops := []Op{PutOp(key, text)}
	if j.State.Final() && j.Key != "" {
		ops = append(ops, DeleteOp(jobIndexKey(cluster, j.Key)))
	}
	return []Cond{ModRev(key, rev)}, ops, nil
}

// TrimJobs removes all but the newest final jobs: what the leading admin does when one has ended.
func TrimJobs(ctx context.Context, store Store, cluster string, jobs []*Job, keep int) error {
	final := 0
	for _, j := range slices.Backward(jobs) {
		if !j.State.Final() {
			continue
		}
		if final++; final <= keep {
			continue
		}
		if _, err := store.Delete(ctx, JobKey(cluster, j.ID), Always()); err != nil {
			return fmt.Errorf("catalog: trim jobs: %w", err)
		}
	}
	return nil
}

// JobOf gives the job that shows an operation on a shard's leadership.
func JobOf(shard string, o *Operation) Job {
	return Job{
		ID: o.ID, Kind: o.Kind, Target: "shard " + shard, Shard: shard, By: o.By, At: o.At, StartedAt: o.At,
		State: JobRunning, Step: "asked for",
	}
}

// Job gives the job of that ID, nil when there is none.
func (s *Snapshot) Job(id string) *Job {
	i, ok := slices.BinarySearchFunc(s.Jobs, id, func(a *Job, id string) int { return strings.Compare(a.ID, id) })
	if !ok {
		return nil
	}
	return s.Jobs[i]
}
