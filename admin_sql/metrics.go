package adminsql

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"neki/internal/pgerr"
)

func (s *Schema) metrics() *Relation {
	return &Relation{
		Schema: SchemaName, Name: "metrics", Comment: "Everything the Prometheus endpoint of this gateway gives",
		Columns: []Column{
			{"name", text, "name of the series, with _bucket, _sum, _count for histograms"},
			{"kind", text, "counter, gauge, histogram, summary or untyped"},
			{"labels", jsonb, "labels of the series"},
			{"value", float8, "value now"},
			{"help", text, "what it measures"},
		},
		rows: ignoreArgs(func(context.Context) ([][]any, error) {
			if s.in.Metrics == nil {
				return nil, missing("metrics")
			}
			return metricRows(s.in.Metrics)
		}),
	}
}

// metricRows flattens what g gathers as the text exposition does: one row a sample.
func metricRows(g prometheus.Gatherer) ([][]any, error) {
	families, err := g.Gather()
	if err != nil && len(families) == 0 {
		return nil, pgerr.New(pgerr.InternalError, "metrics could not be gathered: %w", err)
	}
	var rows [][]any
	for _, f := range families {
		add := func(suffix string, labels []*dto.LabelPair, value float64) {
			rows = append(rows, []any{
				f.GetName() + suffix, strings.ToLower(f.GetType().String()), labelsJSON(labels), value,
				orNull(f.GetHelp()),
			})
		}
		for _, m := range f.GetMetric() {
			addSamples(m, add)
		}
	}
	return rows, nil
}

func addSamples(m *dto.Metric, add func(suffix string, labels []*dto.LabelPair, value float64)) {
	labels := m.GetLabel()
	switch {
	case m.Counter != nil:
		add("", labels, m.Counter.GetValue())
	case m.Gauge != nil:
		add("", labels, m.Gauge.GetValue())
	case m.Untyped != nil:
		add("", labels, m.Untyped.GetValue())
	case m.Summary != nil:
		for _, q := range m.Summary.GetQuantile() {
			add("", withLabel(labels, "quantile", q.GetQuantile()), q.GetValue())
		}
		add("_sum", labels, m.Summary.GetSampleSum())
		add("_count", labels, float64(m.Summary.GetSampleCount()))
	case m.Histogram != nil:
		addHistogram(m.Histogram, labels, add)
	}
}

func addHistogram(h *dto.Histogram, labels []*dto.LabelPair, add func(string, []*dto.LabelPair, float64)) {
	infinite := false
	for _, b := range h.GetBucket() {
		add("_bucket", withLabel(labels, "le", b.GetUpperBound()), float64(b.GetCumulativeCount()))
		infinite = infinite || math.IsInf(b.GetUpperBound(), +1)
	}
	if !infinite {
		add("_bucket", withLabel(labels, "le", math.Inf(+1)), float64(h.GetSampleCount()))
	}
	add("_sum", labels, h.GetSampleSum())
	add("_count", labels, float64(h.GetSampleCount()))
}

func withLabel(labels []*dto.LabelPair, name string, value float64) []*dto.LabelPair {
	formatted := strconv.FormatFloat(value, 'g', -1, 64)
	return append(slices.Clone(labels), &dto.LabelPair{Name: &name, Value: &formatted})
}

// labelsJSON writes labels as Postgres writes jsonb: keys by length, then by bytes, a blank after colon and comma.
func labelsJSON(labels []*dto.LabelPair) string {
	sorted := slices.Clone(labels)
	slices.SortFunc(sorted, func(a, b *dto.LabelPair) int {
		if d := len(a.GetName()) - len(b.GetName()); d != 0 {
			return d
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	var b strings.Builder
	b.WriteByte('{')
	for i, l := range sorted {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(jsonString(l.GetName()) + ": " + jsonString(l.GetValue()))
	}
	b.WriteByte('}')
	return b.String()
}
