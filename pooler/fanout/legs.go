package fanout

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
	"neki/pooler/backend"
)

// Request is what a leg asks its server: messages of which the last is a Query, a Sync or a Flush.
type Request struct {
	Conn *backend.ServerConn
	Out  []byte
	// Until is the type of the message that ends the answer: ReadyForQuery when it is 0.
	Until byte
}

// Kind says what a Piece is.
type Kind byte

// The kinds of pieces. Except for Rows, Data is the message's body.
const (
	Rows      Kind = 'D' // whole DataRow or CopyData messages
	Described Kind = 'T' // RowDescription
	Parameter Kind = 't' // ParameterDescription
	NoData    Kind = 'n'
	Completed Kind = 'C' // CommandComplete; Data is the tag
	Empty     Kind = 'I' // EmptyQueryResponse
	Suspended Kind = 's' // PortalSuspended
	Notice    Kind = 'N'
	Notify    Kind = 'A'
	Failed    Kind = 'E' // Err is set
	CopyIn    Kind = 'G'
	CopyOut   Kind = 'H'
	Ended     Kind = 'Z' // the answer is over, unless the connection failed before
)

// Piece is a part of a leg's answer.
type Piece struct {
	Leg   int
	Kind  Kind
	Data  []byte
	Count int          // of Rows: how many
	Err   *pgerr.Error // of Failed
	Lost  bool         // ... and the connection with it
}

// Sizes of what a leg holds: pieceSize of rows make a piece, and ahead pieces wait for the reader. A leg whose answer is
// long reads moreSize at once.
const (
	pieceSize = 32 << 10
	ahead     = 2
	readSize  = 16 << 10
	moreSize  = 64 << 10
)

func moreRoom() []byte { return make([]byte, moreSize) }

// Legs are the legs of a statement. Its methods are for the goroutine that started them.
type Legs struct {
	legs   []*leg
	joint  chan Piece // when whichever leg has something is read
	stop   chan struct{}
	joined sync.WaitGroup
	// starting guards what is between Close and a leg that begins: started of the legs, and the closing of stop.
	starting sync.Mutex
	closed   bool
	ended    int
}

type leg struct {
	owner *Legs
	index int
	req   Request
	ch    chan Piece
	done  chan struct{} // closed when the goroutine has ended

	held    []byte // the beginning of a message
	rows    []byte
	count   int
	dropped bool // Close was called: nothing is handed on
	failed  bool
	started bool
	stat    Stat
	types   backend.Translator
}

// Start starts the legs. joint means that they are read by Next, else each by NextOf.
func Start(reqs []Request, joint bool) *Legs {
	l := makeLegs(reqs, joint)
	for _, g := range l.legs {
		l.joined.Go(g.run)
	}
	return l
}

// StartInOrder starts a leg when the one before it has ended without an error; they are read by Next. It is for statements
// that take locks: two of them meet on the first shard, and can't each wait for the other on different ones.
func StartInOrder(reqs []Request) *Legs {
	l := makeLegs(reqs, true)
	l.joined.Go(func() {
		failed := false
		for _, g := range l.legs {
			if failed {
				close(g.done)
				g.give(Piece{Kind: Ended})
				continue
			}
			g.run()
			failed = g.failed
		}
	})
	return l
}

func makeLegs(reqs []Request, joint bool) *Legs {
	l := &Legs{stop: make(chan struct{})}
	if joint {
		l.joint = make(chan Piece, ahead*len(reqs))
	}
	for i, r := range reqs {
		g := &leg{owner: l, index: i, req: r, ch: l.joint, done: make(chan struct{})}
		if !joint {
			g.ch = make(chan Piece, ahead)
		}
		if g.req.Until == 0 {
			g.req.Until = 'Z'
		}
		l.legs = append(l.legs, g)
	}
	return l
}

// Next gives the next piece of any leg; io.EOF when all have ended.
func (l *Legs) Next(ctx context.Context) (Piece, error) {
	for l.ended < len(l.legs) {
		select {
		case p := <-l.joint:
			if p.Kind == Ended {
				l.ended++
			}
			return p, nil
		case <-ctx.Done():
			return Piece{}, pgerr.From(ctx.Err())
		}
	}
	return Piece{}, io.EOF
}

// NextOf gives the next piece of one leg; io.EOF when it has ended.
func (l *Legs) NextOf(ctx context.Context, i int) (Piece, error) {
	select {
	case p, ok := <-l.legs[i].ch:
		if !ok {
			return Piece{}, io.EOF
		}
		return p, nil
	case <-ctx.Done():
		return Piece{}, pgerr.From(ctx.Err())
	}
}

// Len counts the legs.
func (l *Legs) Len() int { return len(l.legs) }

// Stat tells of one leg's answer.
type Stat struct {
	Ran  bool  // it was sent to its server
	Rows int64 // that came; more may have been on their way when the leg was cancelled
	Took time.Duration
}

// Stats gives those of all legs. It may be called after Close.
func (l *Legs) Stats() []Stat {
	out := make([]Stat, len(l.legs))
	for i, g := range l.legs {
		out[i] = g.stat
	}
	return out
}

// closeLimit bounds how long a cancelled leg's server may take to end its answer.
const closeLimit = 10 * time.Second

// Close ends the legs: those whose answer is not over are cancelled on their servers. Connections that do not come to
// an end are marked broken.
func (l *Legs) Close() {
	if l.closed {
		return
	}
	l.closed = true
	l.starting.Lock()
	close(l.stop)
	l.starting.Unlock()
	deadline := time.Now().Add(closeLimit)
	var cancels sync.WaitGroup
	for _, g := range l.legs {
		select {
		case <-g.done:
			continue
		default:
		}
		if !g.started { // and won't be
			continue
		}
		sc := g.req.Conn
		sc.SetDeadline(deadline)
		sc.BeginCancel()
		cancels.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), deadline) //nolint:forbidigo // bounded here
			defer cancel()
			_ = sc.Cancel(ctx) // an end by itself, or the deadline, ends the leg then
		})
	}
	cancels.Wait()
	l.joined.Wait()
	for _, g := range l.legs {
		g.req.Conn.SetDeadline(time.Time{})
	}
}

// run sends the leg's messages and hands on the answer.
func (g *leg) run() {
	defer close(g.done)
	if g.owner.joint == nil {
		defer close(g.ch)
	}
	if !g.begins() {
		return
	}
	start := time.Now()
	g.exchange()
	g.stat.Ran, g.stat.Took = true, time.Since(start)
	if g.owner.joint != nil {
		g.give(Piece{Kind: Ended})
	}
}

// exchange sends the messages and hands on what comes.
func (g *leg) exchange() {
	var err error
	if g.types, g.req.Out, err = g.req.Conn.Translator(g.req.Out); err != nil {
		g.failed = true
		g.give(Piece{Kind: Failed, Err: pgerr.From(err)})
	} else if err = g.req.Conn.Exchange(g.req.Out, make([]byte, readSize), moreRoom, g.onChunk); err != nil {
		g.failed = true
		failure := Piece{Kind: Failed, Lost: true, Err: pgerr.New(pgerr.ConnectionFailure, "%v", err)}
		if pgerr.Code(err) == pgerr.NotImplemented { // the connection is given up by intent
			failure.Lost, failure.Err = false, pgerr.From(err)
		}
		g.give(failure)
	}
}

// begins reports whether the leg is still wanted; from then on Close cancels it.
func (g *leg) begins() bool {
	l := g.owner
	l.starting.Lock()
	defer l.starting.Unlock()
	select {
	case <-l.stop:
		return false
	default:
	}
	g.started = true
	return true
}

// give hands a piece on, waiting for the reader; after Close it is dropped.
func (g *leg) give(p Piece) {
	p.Leg = g.index
	if g.dropped {
		return
	}
	select {
	case g.ch <- p:
	case <-g.owner.stop:
		g.dropped = true
	}
}

func (g *leg) onChunk(chunk []byte) (done bool, err error) {
	held := len(g.held) > 0
	if held {
		g.held = append(g.held, chunk...)
		chunk = g.held
	}
	rest, done, err := g.frames(chunk)
	if done || err != nil {
		return done, err
	}
	if !held || len(rest) < len(chunk) { // else held has it already: a long message costs no more than its length
		g.held = append(make([]byte, 0, len(rest)), rest...)
	}
	g.giveRows()
	return false, nil
}

// frames handles the whole messages at the start of b and gives what follows them.
func (g *leg) frames(b []byte) (rest []byte, done bool, err error) {
	for len(b) >= 5 {
		size, err := backend.FrameSize(b)
		if err != nil {
			return nil, false, err
		}
		if len(b) < size {
			break
		}
		if b[0] == 'D' || b[0] == 'd' {
			if err := g.types.Row(b[:size]); err != nil {
				return nil, false, err
			}
			g.row(b[:size])
		} else {
			g.giveRows()
			if done, err = g.frame(b[0], b[5:size]); done || err != nil {
				return nil, done, err
			}
		}
		b = b[size:]
	}
	return b, false, nil
}

// row adds a row to the piece in hand.
func (g *leg) row(frame []byte) {
	if g.rows == nil {
		g.rows = make([]byte, 0, max(readSize, len(frame)))
	}
	g.rows = append(g.rows, frame...)
	g.count++
	g.stat.Rows++
	if len(g.rows) >= pieceSize {
		g.giveRows()
	}
}

func (g *leg) giveRows() {
	if g.count == 0 {
		return
	}
	g.give(Piece{Kind: Rows, Data: g.rows, Count: g.count})
	g.rows, g.count = nil, 0
}

// frame handles a message that is no row.
func (g *leg) frame(typ byte, body []byte) (done bool, err error) {
	done = typ == g.req.Until
	switch typ {
	case 'S':
		var p pgproto3.ParameterStatus
		if err := p.Decode(body); err != nil {
			return false, err
		}
		g.req.Conn.Reported([]byte(p.Name), []byte(p.Value))
	case 'E':
		var e pgproto3.ErrorResponse
		if err := e.Decode(body); err != nil {
			return false, err
		}
		g.failed = true
		failure := pgerr.FromResponse(&e)
		g.give(Piece{Kind: Failed, Err: failure})
		if failure.Severity != pgerr.SeverityError {
			return false, failure
		}
		done = g.req.Until != 'Z' // without a Sync nothing more comes
	case 'Z':
		if len(body) == 1 {
			g.req.Conn.SetStatus(body[0])
		}
	case 'C':
		g.give(Piece{Kind: Completed, Data: append([]byte(nil), body[:max(len(body)-1, 0)]...)})
	case 'T', 't', 'n', 'I', 's', 'N', 'A', 'G', 'H':
		if err := g.types.Message(typ, body); err != nil {
			return false, err
		}
		g.give(Piece{Kind: Kind(typ), Data: append([]byte(nil), body...)})
		done = done || typ == 'G'
	}
	return done, nil
}
