package machines

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// traffic is clients that insert rows, each with its own connection to whichever gateway takes it.
type traffic struct {
	t    testing.TB
	stop context.CancelFunc
	all  sync.WaitGroup
	life time.Duration // of a connection; 0: as long as it works

	mu     sync.Mutex
	acked  []int64
	last   time.Time
	gap    time.Duration // longest time between two acknowledged rows
	errors []error
}

// statementLimit is how long a client waits for an answer: a machine without power sends none.
const statementLimit = 5 * time.Second

// startTraffic starts clients; each has the connection strings of several hosts in another order.
func startTraffic(t testing.TB, life time.Duration, first int64, strings ...string) *traffic {
	ctx, stop := context.WithCancel(context.Background())
	tr := &traffic{t: t, stop: stop, life: life, last: time.Now()}
	for i, dsn := range strings {
		tr.all.Go(func() { tr.client(ctx, dsn, first+int64(i), int64(len(strings))) })
	}
	return tr
}

func (tr *traffic) client(ctx context.Context, dsn string, id, step int64) {
	for ctx.Err() == nil {
		err := tr.session(ctx, dsn, &id, step)
		if err != nil && ctx.Err() == nil {
			tr.mu.Lock()
			tr.errors = append(tr.errors, err)
			tr.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// session inserts by one connection until it fails, or is old enough.
func (tr *traffic) session(ctx context.Context, dsn string, id *int64, step int64) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it may be cut off
	}()
	for began := time.Now(); ctx.Err() == nil && (tr.life == 0 || time.Since(began) < tr.life); time.Sleep(5 * time.Millisecond) {
		*id += step // also after a failure: whether that row is there is not known
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementLimit)
		_, err := conn.Exec(limited, `INSERT INTO acked VALUES ($1)`, *id)
		cancel()
		if err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		tr.ack(*id)
	}
	return nil
}

func (tr *traffic) ack(id int64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.acked = append(tr.acked, id)
	tr.gap = max(tr.gap, time.Since(tr.last))
	tr.last = time.Now()
}

// count gives how many rows are acknowledged.
func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.acked)
}

// end stops the clients.
func (tr *traffic) end() {
	tr.stop()
	tr.all.Wait()
}
