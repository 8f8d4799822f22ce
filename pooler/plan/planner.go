package plan

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"neki/catalog"
	"neki/internal/pgerr"
	"neki/sqlparse"
)

// VirtualSchema tells the names of the neki schema; they are asked for in lower case as Postgres folds them.
type VirtualSchema interface {
	HasRelation(name string) bool
	HasFunction(name string) bool // a set-returning one
	HasProcedure(name string) bool
}

// Options make a Planner.
type Options struct {
	CacheBytes     int64         // most that cached plans may hold; 0 = DefaultCacheBytes
	StatisticBytes int64         // most that the statistics may hold; 0 = DefaultStatisticBytes
	Virtual        VirtualSchema // nil: only names qualified with neki are virtual
}

// Default sizes.
const (
	DefaultCacheBytes     = 16 << 20
	DefaultStatisticBytes = 8 << 20
)

// Planner makes plans and keeps them.
type Planner struct {
	virtual VirtualSchema
	cache   *cache
	stats   *Statistics
	shapers sync.Pool     // of *sqlparse.Shaper
	epoch   atomic.Uint64 // grows with each Flush
}

// New makes a Planner. Close it when no session uses it any more.
func New(o Options) (*Planner, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	if o.StatisticBytes == 0 {
		o.StatisticBytes = DefaultStatisticBytes
	}
	c, err := newCache(o.CacheBytes)
	if err != nil {
		return nil, err
	}
	pl := &Planner{virtual: o.Virtual, cache: c, stats: newStatistics(o.StatisticBytes)}
	seed := rand.Uint64() // clients must not know which texts collide
	pl.shapers.New = func() any { return sqlparse.NewShaper(seed) }
	return pl, nil
}

// Close ends the cache's goroutines. No Plan call may run or follow.
func (pl *Planner) Close() { pl.cache.close() }

// Statistics gives the statistics per fingerprint.
func (pl *Planner) Statistics() *Statistics { return pl.stats }

// Flush forgets all plans.
func (pl *Planner) Flush() {
	pl.epoch.Add(1)
	pl.cache.clear()
}

// Plan plans the one statement of text, as the extended protocol has it: several are 42601. text is not kept. A text
// without a statement gives a plan of kind Empty. The error is a *pgerr.Error.
func (pl *Planner) Plan(text []byte, snap *catalog.Snapshot, env *Env) (*Plan, error) {
	shaper := pl.shapers.Get().(*sqlparse.Shaper)
	defer pl.shapers.Put(shaper)
	shape, err := shaper.ShapeBytes(text)
	if err == nil && shape.Statements > 1 {
		return pl.refuseSeveral(shaper, text, snap, env)
	}
	return pl.one(&shape, err, text, snap, env)
}

// refuseSeveral refuses several statements where one is due. What does not parse the server refuses, for that reason.
//
//go:noinline
func (pl *Planner) refuseSeveral(shaper *sqlparse.Shaper, text []byte, snap *catalog.Snapshot, env *Env) (*Plan, error) {
	parts, err := pl.several(nil, shaper, text, snap, env)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		if cause := parts[i].Plan.ParseError; cause != nil {
			return unparsable(string(text), snap, cause), nil
		}
	}
	return nil, pgerr.New(pgerr.SyntaxError, "cannot insert multiple commands into a prepared statement")
}

// Fresh reports whether p is what Plan would give again: nothing that it depends on has changed.
func (p *Plan) Fresh(snap *catalog.Snapshot, env *Env) bool {
	return p.version == version{catalog: snap.PlanVersion, functions: env.functionsVersion()}
}

// PlanAll plans each statement of text, as the simple protocol has it, and appends them to dst. It appends one of kind
// Empty when there is none. text is not kept. When one part does not parse (Plan.ParseError), nothing of the string must
// run before the server has seen it all.
func (pl *Planner) PlanAll(dst []Part, text []byte, snap *catalog.Snapshot, env *Env) ([]Part, error) {
	shaper := pl.shapers.Get().(*sqlparse.Shaper)
	shape, err := shaper.ShapeBytes(text)
	if err == nil && shape.Statements > 1 {
		dst, err = pl.several(dst, shaper, text, snap, env)
		pl.shapers.Put(shaper)
		return dst, err
	}
	p, err := pl.one(&shape, err, text, snap, env)
	pl.shapers.Put(shaper)
	if err != nil {
		return dst, err
	}
	return append(dst, Part{Plan: p, End: len(text)}), nil
}

// several plans a string of statements. It is apart from PlanAll so that the usual case needs little stack.
//
//go:noinline
func (pl *Planner) several(dst []Part, shaper *sqlparse.Shaper, text []byte, snap *catalog.Snapshot, env *Env) ([]Part, error) {
	spans, err := sqlparse.Split(nil, string(text))
	if err != nil {
		return append(dst, Part{Plan: unparsable(string(text), snap, err), End: len(text)}), nil
	}
	for _, s := range spans {
		piece := text[s.Start:s.End]
		shape, err := shaper.ShapeBytes(piece)
		p, err := pl.one(&shape, err, piece, snap, env)
		if err != nil {
			return dst, within(text, s.Start, err)
		}
		dst = append(dst, Part{Plan: p, Start: s.Start, End: s.End})
	}
	return dst, nil
}

// within gives the error of a statement that begins at start with the position that it has in the whole string.
func within(text []byte, start int, err error) error {
	e := pgerr.From(err)
	if e == nil || e.Position == 0 {
		return err
	}
	return e.WithPosition(e.Position + int32(utf8.RuneCount(text[:start])))
}

// makeApart makes a plan on a goroutine of its own, which it waits for: a parse takes a deep stack, and the caller's, one
// of many thousand sessions, would keep it. A panic in the parser or planner is an error of this statement.
func (pl *Planner) makeApart(text string, sh sqlparse.Shape, snap *catalog.Snapshot, env *Env, spreads bool) (p *Plan, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				p, err = nil, pgerr.New(pgerr.InternalError, "the planner failed: %v", r)
			}
		}()
		p, err = pl.make(text, sh, snap, env, spreads)
	}()
	<-done
	return p, err
}

// textKey keeps the hashes of whole texts apart from those of shapes.
const textKey = 0x9e3779b97f4a7c15

// one finds or makes the plan of a single statement.
func (pl *Planner) one(sh *sqlparse.Shape, shapeErr error, text []byte, snap *catalog.Snapshot, env *Env) (*Plan, error) {
	v := version{catalog: snap.PlanVersion, functions: env.functionsVersion()}
	if shapeErr != nil { // never cached: it is rare, and the text may be huge
		p := unparsable(string(text), snap, shapeErr)
		p.version = v
		return p, nil
	}
	key := sh.Hash ^ env.hash
	byText := false
	p := pl.cache.get(key, sh.Text, v)
	if p != nil && p.marker {
		byText = true
		p = pl.cache.get(xxh3.HashSeed(text, textKey)^env.hash, text, v)
	}
	if p != nil {
		p.hits.Add(1)
		add(&pl.cache.hits)
		return p, nil
	}
	add(&pl.cache.misses)
	p, err := pl.makeApart(string(text), *sh, snap, env, false)
	if err != nil {
		return nil, err
	}
	p.version = v
	p.plain = p.isPlain()
	p.template = newTemplate(string(text), sh.Literals, p.ByText)
	p.bytes += p.template.size()
	if !p.ByText {
		pl.cache.put(key, p)
		return p, nil
	}
	if !byText {
		pl.cache.put(key, markerFor(string(sh.Text), v))
	}
	pl.cache.put(xxh3.HashSeed(text, textKey)^env.hash, p)
	return p, nil
}

// markerFor stands in the cache for a shape whose plans depend on the literals.
func markerFor(shape string, v version) *Plan {
	m := &Plan{Query: shape, key: shape, version: v, marker: true}
	m.bytes = sizeOf(m)
	return m
}

// CacheState is the cache in figures.
type CacheState struct {
	Hits, Misses, Evictions int64
	Plans                   int
	Bytes, MaxBytes         int64
}

// CacheState counts the cache. It walks over it: not for the hot path.
func (pl *Planner) CacheState() CacheState {
	s := CacheState{
		Hits: total(&pl.cache.hits), Misses: total(&pl.cache.misses), Evictions: pl.cache.evictions.Load(),
		MaxBytes: pl.cache.plans.MaxCost(),
	}
	s.Bytes = s.MaxBytes - pl.cache.plans.RemainingCost()
	pl.cache.each(func(*Plan) { s.Plans++ })
	return s
}

// Plans lists the cached plans in no order.
func (pl *Planner) Plans() []*Plan {
	var out []*Plan
	pl.cache.each(func(p *Plan) { out = append(out, p) })
	return out
}
