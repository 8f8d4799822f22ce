package admin

import (
	"time"

	"neki/catalog"
	"neki/settings"
)

// base are the parameters as this admin's configuration has them.
func (c *Config) base() settings.Parameters {
	p := settings.DefaultParameters()
	p.BackupInterval = c.Backups.Interval
	if c.Backups.Retention > 0 {
		p.BackupRetention = c.Backups.Retention
	}
	if c.ReplaceAfter != 0 {
		p.ReplaceAfter = max(c.ReplaceAfter, 0)
	}
	return p
}

// parameters are what others show of the configuration.
func (c *Config) parameters() map[string]string {
	base, list := c.base(), map[string]string{}
	for _, name := range []string{settings.BackupInterval, settings.BackupRetention, settings.ReplaceAfter} {
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
	for _, f := range []struct {
		name string
		into *time.Duration
	}{{settings.BackupInterval, &p.BackupInterval}, {settings.BackupRetention, &p.BackupRetention}, {settings.ReplaceAfter, &p.ReplaceAfter}} {
		if text, ok := snap.Parameter("admin", f.name); ok {
			if d, ok := settings.ParseInterval(text); ok && d >= 0 {
				*f.into = d
			}
		}
	}
	return p
}
