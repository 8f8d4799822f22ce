package agent

import (
	"sync"
	"time"

	"neki/catalog"
)

// publisher holds the newest report and lets any number of streams wait for the next. The sampler alone writes.
type publisher struct {
	mu      sync.Mutex
	report  catalog.Health
	at      time.Time
	ring    catalog.Ring // of flush positions, while this is a primary
	changed chan struct{}
}

func newPublisher() *publisher { return &publisher{changed: make(chan struct{})} }

// publish makes h the newest report. The ring starts anew when the instance is no primary.
func (p *publisher) publish(h catalog.Health, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case h.Role != catalog.RolePrimary:
		p.ring = catalog.Ring{}
	case h.FlushLSN != 0:
		p.ring.Add(at, h.FlushLSN)
	}
	h.Seq = p.report.Seq + 1
	p.report, p.at = h, at
	close(p.changed)
	p.changed = make(chan struct{})
}

// latest gives the newest report as of now, with the ring's samples of the last span (0 = all), and a channel that is
// closed at the next one.
func (p *publisher) latest(span time.Duration) (catalog.Health, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.report
	now := time.Now()
	if h.Streaming {
		h.LastMsgAge += now.Sub(p.at)
	}
	h.Ring = p.ring.Samples(now, span)
	return h, p.changed
}
