package catalog

import (
	"context"
	"log/slog"
	"time"
)

// KeepRegistered calls register under a lease of the given time, again whenever the lease is lost or register failed,
// until ctx ends; then it gives the lease up, so that what was registered is gone. It returns ctx's error.
func KeepRegistered(
	ctx context.Context, store Store, ttl time.Duration, log *slog.Logger, register func(context.Context, Lease) error,
) error {
	backoff := backoffFirst
	outage := Outage{Log: log, What: "registration in the catalog"}
	for ctx.Err() == nil {
		err := registerOnce(ctx, store, ttl, func(ctx context.Context, lease Lease) error {
			if err := register(ctx, lease); err != nil {
				return err
			}
			backoff = backoffFirst
			outage.Worked()
			return nil
		})
		if ctx.Err() != nil {
			break
		}
		outage.Failed(err)
		pause(ctx, backoff)
		backoff = min(2*backoff, backoffMost)
	}
	return ctx.Err()
}

// registerOnce returns when the lease is lost or ctx has ended.
func registerOnce(
	ctx context.Context, store Store, ttl time.Duration, register func(context.Context, Lease) error,
) error {
	granting, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	lease, err := store.Lease(granting, ttl)
	if err != nil {
		return err
	}
	defer lease.Close() // a lease that can't be given up runs out by itself
	if err := register(granting, lease); err != nil {
		return err
	}
	select {
	case <-lease.Lost():
		return ErrLeaseLost
	case <-ctx.Done():
		return ctx.Err()
	}
}
