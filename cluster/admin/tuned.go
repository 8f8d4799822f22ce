package admin

import (
	"context"
	"time"

	"neki/catalog"
	"neki/settings"
)

// followed are the parameters of scope admin: a leading admin follows each while it runs.
var followed = []string{
	settings.DiscoveryPoll, settings.RecoveryPoll, settings.AcceptableLag, settings.SwitchoverTimeout, settings.BackupInterval,
	settings.BackupRetention, settings.ReplaceAfter,
}

// base are the parameters as this admin's configuration has them.
func (c *Config) base() settings.Parameters {
	p := settings.DefaultParameters()
	p.BackupInterval = c.Backups.Interval
	for _, f := range []struct {
		into *time.Duration
		set  time.Duration
	}{
		{&p.BackupRetention, c.Backups.Retention},
		{&p.DiscoveryPoll, c.Poll},
		{&p.RecoveryPoll, c.RecoveryPoll},
		{&p.AcceptableLag, c.AcceptableLag},
		{&p.SwitchoverTimeout, c.SwitchoverTimeout},
	} {
		if f.set > 0 {
			*f.into = f.set
		}
	}
	if c.ReplaceAfter != 0 {
		p.ReplaceAfter = max(c.ReplaceAfter, 0)
	}
	return p
}

// parameters are what others show of the configuration.
func (c *Config) parameters() map[string]string {
	base, list := c.base(), map[string]string{}
	for _, name := range followed {
		row, _ := settings.FindParameter(name)
		list[name] = row.Format(base)
	}
	return list
}

// tuned are the parameters in force: of the configuration, and over them those that were set by SQL. One that doesn't fit there is
// left out.
func (c *Config) tuned(snap *catalog.Snapshot) settings.Parameters {
	p := c.base()
	if snap == nil {
		return p
	}
	for _, name := range followed {
		if text, ok := snap.Parameter("admin", name); ok {
			if next, err := p.Set(name, text); err == nil {
				p = next
			}
		}
	}
	return p
}

// tuned are the parameters in force now.
func (l *leader) tuned() settings.Parameters { return l.a.cfg.tuned(l.a.live.Snapshot()) }

// rest waits for as long as a parameter says, which may become another meanwhile, or until ctx ends.
func (l *leader) rest(ctx context.Context, of func(settings.Parameters) time.Duration) {
	began := time.Now()
	for ctx.Err() == nil {
		changed := l.a.live.Changed()
		left := of(l.tuned()) - time.Since(began)
		if left <= 0 {
			return
		}
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
	}
}
