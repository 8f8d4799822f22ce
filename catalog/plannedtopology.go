package catalog

// WithTopology gives a snapshot that differs in its topology alone: what plans would be under a document that is not set.
func (s *Snapshot) WithTopology(t *Topology) *Snapshot {
	dup := *s
	dup.topology = t
	return &dup
}
