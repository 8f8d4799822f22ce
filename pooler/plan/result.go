package plan

// What is known of a plan's result.
const (
	resultUnknown = iota
	resultPlain
	resultEmbeds
)

// NoteResult remembers of the plan's rows whether values in binary form have OIDs in them that differ between shards.
func (p *Plan) NoteResult(embeds bool) {
	now := int32(resultPlain)
	if embeds {
		now = resultEmbeds
	}
	if p.result.Load() != now {
		p.result.Store(now)
	}
}

// PlainResult reports whether it is known that they have none.
func (p *Plan) PlainResult() bool { return p.result.Load() == resultPlain }
