package pooler

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the figures of a gateway. Collectors gives them for a registry.
type Metrics struct {
	statements, errors, cancels, logins, loginFailures, panics prometheus.Counter
}

func newMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "neki", Subsystem: "gateway", Name: name, Help: help})
	}
	return &Metrics{
		statements:    counter("statements_total", "Statements run."),
		errors:        counter("errors_total", "Errors sent to clients."),
		cancels:       counter("cancels_total", "Cancel requests with a right key."),
		logins:        counter("logins_total", "Sessions begun."),
		panics:        counter("session_panics_total", "Sessions ended by a fault of the gateway: report these."),
		loginFailures: counter("login_failures_total", "Connections that did not become sessions."),
	}
}

// Describe makes Server a prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect gives the gateway's figures.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	m := s.metrics
	for _, c := range []prometheus.Counter{m.statements, m.errors, m.cancels, m.logins, m.loginFailures, m.panics} {
		ch <- c
	}
	gauge := func(name, help string, value float64, labels, values []string) {
		ch <- prometheus.MustNewConstMetric(
			prometheus.NewDesc("neki_gateway_"+name, help, labels, nil), prometheus.GaugeValue, value, values...)
	}
	gauge("clients", "Sessions now connected.", float64(s.sessions.len()), nil, nil)
	state := s.planner.CacheState()
	gauge("plan_cache_plans", "Plans in the cache.", float64(state.Plans), nil, nil)
	gauge("plan_cache_bytes", "Memory that cached plans hold.", float64(state.Bytes), nil, nil)
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("neki_gateway_plan_cache_hits_total", "Plans found in the cache.",
		nil, nil), prometheus.CounterValue, float64(state.Hits))
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("neki_gateway_plan_cache_misses_total", "Plans made anew.",
		nil, nil), prometheus.CounterValue, float64(state.Misses))
	s.holds.each(func(shard string, statements, bytes int) {
		gauge("held_statements", "Statements that wait for a primary.", float64(statements), []string{"shard"}, []string{shard})
		gauge("held_bytes", "Memory of the statements that wait for a primary.", float64(bytes), []string{"shard"}, []string{shard})
	})
	labels := []string{"node", "user", "database"}
	for _, p := range s.pools.Stats() {
		values := []string{p.Node, p.User, p.Database}
		gauge("pool_active", "Server connections in use.", float64(p.Active), labels, values)
		gauge("pool_idle", "Server connections at rest.", float64(p.Idle), labels, values)
		gauge("pool_waiting", "Sessions that wait for a server connection.", float64(p.Waiting), labels, values)
	}
}
