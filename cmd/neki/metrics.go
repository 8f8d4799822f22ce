package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"neki/catalog"
)

// clusterMetrics shows the cluster as this process sees it.
type clusterMetrics struct{ live *catalog.Live }

// Descriptions of the cluster's metrics.
var (
	nodeServing = prometheus.NewDesc("neki_node_serving", "Whether the instance serves (1) or not (0).",
		[]string{"node", "shard", "role"}, nil)
	nodeLag = prometheus.NewDesc("neki_node_lag_seconds", "How far the replica is behind; absent when unknown.",
		[]string{"node", "shard"}, nil)
	nodeLagBytes = prometheus.NewDesc("neki_node_lag_bytes", "Log that the replica has not replayed; absent when unknown.",
		[]string{"node", "shard"}, nil)
	catalogUp = prometheus.NewDesc("neki_catalog_up", "Whether the catalog can be reached (1) or not (0).", nil, nil)
)

// Describe is part of prometheus.Collector.
func (clusterMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeServing, nodeLag, nodeLagBytes, catalogUp} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (c clusterMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(catalogUp, number(c.live.StoreError() == nil))
	snap := c.live.Snapshot()
	if snap == nil {
		return
	}
	for i := range snap.Nodes {
		n := &snap.Nodes[i]
		h := snap.Health(n.ID)
		primary := snap.PrimaryOf(n.Shard) == n
		role := n.Role
		if primary {
			role = catalog.RolePrimary
		}
		gauge(nodeServing, number(h != nil && h.State == catalog.StateServing), n.ID, n.Shard, role.String())
		if h == nil || primary {
			continue
		}
		if h.LagKnown {
			gauge(nodeLag, h.Lag.Seconds(), n.ID, n.Shard)
		}
		if h.LagBytesKnown {
			gauge(nodeLagBytes, float64(h.LagBytes), n.ID, n.Shard)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
