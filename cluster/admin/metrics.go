package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"neki/cluster/agent"
)

// metrics are how long the changes of leaders took, and each part of them.
type metrics struct {
	registry *prometheus.Registry
	steps    *prometheus.HistogramVec // of orders
	changes  *prometheus.HistogramVec // from the new term to its active rule
}

// phaseBuckets are those of what should take milliseconds, and may take seconds.
var phaseBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func newMetrics() *metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "neki", Subsystem: "admin", Name: name, Help: help, Buckets: phaseBuckets,
		}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		steps:    histogram("order_step_seconds", "How long a part of an order on the way to another leader took.", "order", "step"),
		changes:  histogram("leader_change_seconds", "From the beginning of a term to its active rule.", "shard"),
	}
	m.registry.MustRegister(m.steps, m.changes)
	return m
}

// note counts the parts of an order.
func (m *metrics) note(order string, steps []agent.Step) {
	for _, s := range steps {
		m.steps.WithLabelValues(order, s.What).Observe(s.Took.Seconds())
	}
}

// changed counts a change of a shard's leader.
func (m *metrics) changed(shard string, took time.Duration) {
	m.changes.WithLabelValues(shard).Observe(took.Seconds())
}
