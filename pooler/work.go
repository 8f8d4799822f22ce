package pooler

import (
	"sync"

	"neki/pooler/backend"
	"neki/pooler/plan"
)

// work is what a session needs while it has something to do: buffers, the relay and scratch space. It is lent for a
// request and goes back when the session waits for its client with nothing half read.
type work struct {
	in         []byte // what came from the client: in[start:end] is unread
	start, end int
	answers    []byte // room for what servers send
	large      []byte // more room, lent while an answer is long
	inString   bool   // statements of a string run one after the other
	before     int32  // characters of a string before the statement of it that the gateway answers
	text       []byte // the client's Query, in the input buffer, until it has been shown
	shown      []byte // room for what neki.sessions shows of it
	out        []byte // what goes to a server
	reply      []byte // frames of the gateway's own for the client
	parts      []plan.Part
	executed   []plan.Part  // of them, in a segment
	plans      []*plan.Plan // by expected answer of the relay
	ops        []op
	bound      op // a Bind whose shard is being found on a plain statement's way
	sql        sqlNames
	values     plan.Values // of the statement whose shard is being found
	shards     []string
	oids       []uint32
	replaced   []unnamedStatement // by messages of the segment
	running    []op               // those that the expected answers are of: ops[runningAt:], or the beginning of that
	runningAt  int
	mayBeStale bool // a statement of the segment was prepared on its server before the client's Parse
	relay      *backend.Relay
	used       bool // more of it than a plain statement needs: there is more to clear
}

// Sizes of buffers. inSize holds a usual pipeline; a longer message makes the buffer grow, and a grown one does not go
// back to the pool. answerSize holds a usual answer, largeSize is what one read takes of a large result.
const (
	inSize     = 8 << 10
	answerSize = 16 << 10
	largeSize  = 256 << 10
	outSize    = 4 << 10
	keepSize   = 64 << 10
	shownSize  = 1024 // as track_activity_query_size
)

// workPool lends work, and large buffers to those who need one.
type workPool struct{ pool, large sync.Pool }

// enlarge gives w a large buffer.
func (p *workPool) enlarge(w *work) []byte {
	if w.large != nil {
		return w.large
	}
	if b, ok := p.large.Get().(*[]byte); ok {
		w.large = *b
	} else {
		w.large = make([]byte, largeSize)
	}
	return w.large
}

func (p *workPool) get() *work {
	if w, ok := p.pool.Get().(*work); ok {
		return w
	}
	w := &work{
		in: make([]byte, inSize), answers: make([]byte, answerSize), out: make([]byte, 0, outSize),
		shown: make([]byte, 0, shownSize),
		relay: backend.NewRelay(),
	}
	w.relay.More = func() []byte { return p.enlarge(w) }
	return w
}

func (p *workPool) put(w *work) {
	if cap(w.in) > inSize {
		w.in = make([]byte, inSize)
	}
	if cap(w.out) > keepSize {
		w.out = make([]byte, 0, outSize)
	}
	if cap(w.reply) > keepSize {
		w.reply = nil
	}
	if w.large != nil {
		b := w.large
		w.large = nil
		p.large.Put(&b)
	}
	clear(w.parts[:cap(w.parts)])
	if w.used {
		w.used = false
		clear(w.executed[:cap(w.executed)])
		clear(w.plans[:cap(w.plans)])
		clear(w.ops[:cap(w.ops)])
		w.sql = sqlNames{}
		w.trimReplaced()
	}
	if w.bound.typ != 0 {
		w.bound = op{}
	}
	w.running, w.text = nil, nil
	w.values = plan.Values{Params: w.values.Params[:0], Formats: w.values.Formats[:0]}
	clear(w.values.Params[:cap(w.values.Params)])
	w.start, w.end = 0, 0
	w.out, w.reply, w.parts, w.plans, w.ops = w.out[:0], w.reply[:0], w.parts[:0], w.plans[:0], w.ops[:0]
	w.executed = w.executed[:0]
	w.relay.Begin()
	w.relay.Bind(nil, nil)
	p.pool.Put(w)
}

// trimReplaced lets go of unnamed statements, keeping a little room for those to come.
func (w *work) trimReplaced() {
	w.forgetReplaced()
	room := 0
	for _, u := range w.replaced[:cap(w.replaced)] {
		room += cap(u.parse)
	}
	if room > keepSize || cap(w.replaced) > keepReplaced {
		w.replaced = nil
	}
}

// keepReplaced is how many of them room is kept for.
const keepReplaced = 64
