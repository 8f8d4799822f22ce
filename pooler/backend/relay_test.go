package backend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// sink is a client that keeps what it gets.
type sink struct {
	bytes.Buffer
	err error
}

func (s *sink) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.Buffer.Write(b)
}

// journal notes what a session is told.
type journal struct {
	log   []string
	relay *Relay
	extra []byte // put in before ReadyForQuery
}

func (j *journal) ParameterChanged(name, value []byte) bool {
	j.log = append(j.log, "parameter "+string(name)+"="+string(value))
	return false
}

func (j *journal) Completed(index, nth int, tag []byte) {
	j.log = append(j.log, "completed "+string(rune('0'+index))+" "+string(rune('0'+nth))+" "+string(tag))
}

func (j *journal) Reword(int, []byte) []byte { return nil }

func (j *journal) Notified([]byte) bool { return true }

func (j *journal) Failed(index int, code []byte, fatal bool) {
	j.log = append(j.log, "failed "+string(rune('0'+index))+" "+string(code))
}

func (j *journal) Described(int, bool) {}

func (j *journal) Ready(index int, status byte) {
	j.log = append(j.log, "ready "+string(status))
	if j.extra != nil {
		j.relay.Append(j.extra)
	}
}

func frame(typ byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4)), body...)
}

func stream(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

var (
	parseOK  = frame('1', "")
	bindOK   = frame('2', "")
	closeOK  = frame('3', "")
	noData   = frame('n', "")
	row      = frame('D', "\x00\x01\x00\x00\x00\x05hello")
	complete = frame('C', "SELECT 1\x00")
	ready    = frame('Z', "I")
	failure  = frame('E', "SERROR\x00VERROR\x00C42601\x00Mno\x00\x00")
	conflict = frame('E', "SERROR\x00VERROR\x00C40001\x00Mconflict\x00\x00")
	readOnly = frame('E', "SERROR\x00VERROR\x00C25006\x00Mread only\x00\x00")
	shutdown = frame('E', "SFATAL\x00VFATAL\x00C57P01\x00Mbye\x00\x00")
	notice   = frame('N', "SNOTICE\x00VNOTICE\x00C00000\x00Mhm\x00\x00")
	zone     = frame('S', "TimeZone\x00UTC\x00")
	shown    = frame('S', "TimeZone\x00Asia/Tokyo\x00")
)

// relayCases give the server's answers and what the client must get of them.
var relayCases = []struct {
	name    string
	expects []Expect
	server  []byte
	client  []byte
	log     []string
	prepare func(r *Relay, j *journal)
	check   func(t *testing.T, r *Relay)
}{
	{
		name: "simple query", expects: []Expect{{Kind: 'Q'}},
		server: stream(row, row, complete, ready), client: stream(row, row, complete, ready),
		log: []string{"completed 0 0 SELECT 1", "ready I"},
	},
	{
		name: "parameters are told before ReadyForQuery", expects: []Expect{{Kind: 'Q'}},
		server: stream(zone, notice, complete, ready), client: stream(notice, complete, shown, ready),
		log:     []string{"parameter TimeZone=UTC", "completed 0 0 SELECT 1", "ready I"},
		prepare: func(r *Relay, j *journal) { j.extra = shown },
	},
	{
		name:    "a statement prepared unseen",
		expects: []Expect{{'P', Swallow}, {'B', Forward}, {'E', Forward}, {'S', Forward}},
		server:  stream(parseOK, bindOK, row, complete, ready), client: stream(bindOK, row, complete, ready),
		log: []string{"completed 2 0 SELECT 1", "ready I"},
	},
	{
		name:    "answers made here keep their places",
		expects: []Expect{{'P', Synth}, {'B', Forward}, {'C', Synth}, {'E', Forward}, {'C', Synth}, {'S', Forward}},
		server:  stream(bindOK, row, complete, ready),
		client:  stream(parseOK, bindOK, closeOK, row, complete, closeOK, ready),
		log:     []string{"completed 3 0 SELECT 1", "ready I"},
	},
	{
		name:    "an error ends the segment, not the next one",
		expects: []Expect{{'P', Forward}, {'B', Forward}, {'C', Synth}, {'E', Forward}, {'S', Forward}, {'P', Synth}, {'B', Forward}, {'E', Forward}, {'S', Forward}},
		server:  stream(parseOK, failure, ready, bindOK, complete, ready),
		client:  stream(parseOK, failure, ready, parseOK, bindOK, complete, ready),
		log:     []string{"failed 1 42601", "ready I", "completed 7 0 SELECT 1", "ready I"},
	},
	{
		name: "an error put in place of the server's", expects: []Expect{{'B', Replace}, {'S', Forward}},
		server: stream(failure, ready), client: stream(readOnly, ready),
		log:     []string{"failed 0 42601", "ready I"},
		prepare: func(r *Relay, _ *journal) { r.Replacement = readOnly },
	},
	{
		name: "a replica that can't serve is kept from the client", expects: []Expect{{Kind: 'Q'}},
		server: stream(noData, notice, conflict, ready), client: nil,
		prepare: func(r *Relay, _ *journal) { r.Retryable = true },
		check: func(t *testing.T, r *Relay) {
			if !r.Retry || r.Wrote {
				t.Errorf("Retry %v, Wrote %v", r.Retry, r.Wrote)
			}
		},
	},
	{
		name: "a read that writes", expects: []Expect{{Kind: 'Q'}}, server: stream(readOnly, ready), client: nil,
		prepare: func(r *Relay, _ *journal) { r.Misrouted = true },
		check: func(t *testing.T, r *Relay) {
			if !r.Retry || !r.Wrote {
				t.Errorf("Retry %v, Wrote %v", r.Retry, r.Wrote)
			}
		},
	},
	{
		name: "after a row an error is the client's", expects: []Expect{{Kind: 'Q'}},
		server: stream(row, conflict, ready), client: stream(row, conflict, ready),
		log: []string{"failed 0 40001", "ready I"}, prepare: func(r *Relay, _ *journal) { r.Retryable = true },
	},
	{
		name: "several statements of a string", expects: []Expect{{Kind: 'Q'}},
		server: stream(complete, frame('I', ""), row, complete, ready), client: stream(complete, frame('I', ""), row, complete, ready),
		log: []string{"completed 0 0 SELECT 1", "completed 0 1 ", "completed 0 2 SELECT 1", "ready I"},
	},
	{
		name: "held ReadyForQuery", expects: []Expect{{Kind: 'Q'}}, server: stream(complete, ready), client: complete,
		log: []string{"completed 0 0 SELECT 1"}, prepare: func(r *Relay, _ *journal) { r.HoldReady = true },
	},
}

// TestRelay sends each stream whole, byte by byte, and in random pieces: the client must get the same every time. Only
// errors that are to be held back depend on what came with them, so those come whole.
func TestRelay(t *testing.T) {
	for _, tc := range relayCases {
		for seed := range uint64(60) {
			var client sink
			j := &journal{}
			r := NewRelay()
			j.relay = r
			r.Bind(&client, j)
			r.Begin()
			for _, e := range tc.expects {
				r.Expect(e.Kind, e.Act)
			}
			if tc.prepare != nil {
				tc.prepare(r, j)
			}
			r.Whole = onePlain(tc.expects) && !r.HoldReady // makes no difference to the client or the session
			pieces := split(tc.server, seed)
			if r.Retryable || r.Misrouted {
				pieces = [][]byte{tc.server}
			}
			feed(t, r, pieces)
			if r.Pending() {
				t.Errorf("%s, seed %d: answers pending", tc.name, seed)
			}
			if !bytes.Equal(client.Bytes(), tc.client) {
				t.Fatalf("%s, seed %d: the client got\n%q, want\n%q", tc.name, seed, client.Bytes(), tc.client)
			}
			if got, want := join(j.log), join(tc.log); got != want {
				t.Fatalf("%s, seed %d: the session was told\n%s, want\n%s", tc.name, seed, got, want)
			}
			if tc.check != nil {
				tc.check(t, r)
			}
		}
	}
}

// onePlain reports whether answers may be those of one plain statement.
func onePlain(expects []Expect) bool {
	kinds := ""
	for _, e := range expects {
		if kinds += string(e.Kind); e.Act != Forward {
			return false
		}
	}
	switch kinds {
	case "Q", "PBDES", "PBES", "BDES", "BES":
		return true
	}
	return false
}

func join(lines []string) string {
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l + "; ")
	}
	return b.String()
}

func feed(t *testing.T, r *Relay, pieces [][]byte) {
	t.Helper()
	r.synthesize()
	for i, p := range pieces {
		done, err := r.onChunk(p)
		if err != nil {
			t.Fatal(err)
		}
		if done != (i == len(pieces)-1) && !r.CopyIn {
			t.Fatalf("done is %v at piece %d of %d", done, i+1, len(pieces))
		}
	}
}

// split cuts b: whole for seed 0, byte by byte for 1, at random after that.
func split(b []byte, seed uint64) [][]byte {
	if seed == 0 {
		return [][]byte{b}
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	var out [][]byte
	for len(b) > 0 {
		n := 1
		if seed > 1 {
			n = 1 + rng.IntN(min(len(b), 40))
		}
		out = append(out, bytes.Clone(b[:n]))
		b = b[n:]
	}
	return out
}

func TestRelayPassesLargeRowsInPieces(t *testing.T) {
	big := frame('D', string(bytes.Repeat([]byte("x"), 1<<20)))
	var client sink
	j := &journal{}
	r := NewRelay()
	r.Bind(&client, j)
	r.Begin()
	r.Expect('Q', Forward)
	server := stream(big, complete, ready)
	for at := 0; at < len(server); at += 64 << 10 {
		if _, err := r.onChunk(server[at:min(at+64<<10, len(server))]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(client.Bytes(), server) || r.Rows != 1 {
		t.Errorf("%d bytes of %d, %d rows", client.Len(), len(server), r.Rows)
	}
}

func TestRelayRefusesBrokenFrames(t *testing.T) {
	for _, b := range [][]byte{{'D', 0, 0, 0, 3}, {'D', 0xff, 0xff, 0xff, 0xff}, {'Z', 0, 0, 0, 0}} {
		r := NewRelay()
		r.Bind(&sink{}, &journal{})
		r.Begin()
		r.Expect('Q', Forward)
		if _, err := r.onChunk(b); err == nil {
			t.Errorf("%v is taken", b)
		}
	}
}

func TestRelayClientGone(t *testing.T) {
	r := NewRelay()
	r.Bind(&sink{err: errors.New("gone")}, &journal{})
	r.Begin()
	r.Expect('Q', Forward)
	_, err := r.onChunk(stream(row, complete))
	var gone *ClientError
	if !errors.As(err, &gone) {
		t.Fatalf("%v", err)
	}
	r.Muted = true
	if done, err := r.onChunk(ready); err != nil || !done {
		t.Errorf("drained: %v, %v", done, err)
	}
}

func TestRelayFatal(t *testing.T) {
	var client sink
	r := NewRelay()
	r.Bind(&client, &journal{})
	r.Begin()
	r.Expect('Q', Forward)
	if _, err := r.onChunk(shutdown); !errors.Is(err, io.ErrUnexpectedEOF) || !r.Fatal || client.Len() > 0 || !r.Untouched() {
		t.Errorf("Fatal %v, %v; the client got %q", r.Fatal, err, client.Bytes())
	}
	if got := r.AppendFarewell(nil); !bytes.Equal(got, shutdown) || r.Field('C') != "57P01" || r.Field('M') != "bye" || r.Field('R') != "" {
		t.Errorf("farewell %q, C %q, M %q, R %q", got, r.Field('C'), r.Field('M'), r.Field('R'))
	}
	r.Begin()
	r.Expect('Q', Forward)
	if _, err := r.onChunk(stream(row, complete, shutdown)); err == nil || !bytes.Equal(client.Bytes(), stream(row, complete)) || r.Untouched() {
		t.Errorf("after a result: %v; the client got %q", err, client.Bytes())
	}
}

// TestRelayUnreplicated: a commit whose wait for its standbys was cancelled is no success, by either protocol.
func TestRelayUnreplicated(t *testing.T) {
	cancelled := frame('N', "SWARNING\x00VWARNING\x00C01000\x00Mcanceling wait\x00Fsyncrep.c\x00RSyncRepWaitForLSN\x00\x00")
	for _, tc := range []struct {
		name           string
		expects        []Expect
		server, before []byte
	}{
		{"simple", []Expect{{Kind: 'Q'}}, stream(cancelled, complete, ready), nil},
		{"two statements", []Expect{{Kind: 'Q'}}, stream(complete, cancelled, complete, ready), complete},
		{"extended", []Expect{{Kind: 'B'}, {Kind: 'E'}, {Kind: 'S'}}, stream(bindOK, complete, cancelled, ready), stream(bindOK, complete)},
	} {
		var client sink
		r := NewRelay()
		r.Bind(&client, &journal{})
		r.Begin()
		for _, e := range tc.expects {
			r.Expect(e.Kind, e.Act)
		}
		r.Whole = onePlain(tc.expects)
		if done, err := r.onChunk(tc.server); err != nil || !done {
			t.Fatalf("%s: %v, %v", tc.name, done, err)
		}
		rest, ok := bytes.CutPrefix(client.Bytes(), tc.before)
		doubt, ended := bytes.CutSuffix(rest, ready)
		if !ok || !ended || len(doubt) < 5 || doubt[0] != 'E' || int(binary.BigEndian.Uint32(doubt[1:]))+1 != len(doubt) || !bytes.Contains(doubt, []byte("C08007\x00")) {
			t.Errorf("%s: the client got %q", tc.name, client.Bytes())
		}
	}
}

// FuzzRelay must survive any server, and never give a client bytes that the server did not send.
func FuzzRelay(f *testing.F) {
	for _, tc := range relayCases {
		f.Add(tc.server, uint64(3))
	}
	f.Fuzz(func(t *testing.T, server []byte, seed uint64) {
		var client sink
		r := NewRelay()
		r.Bind(&client, &journal{relay: r})
		r.Begin()
		for _, k := range "PBESQ" {
			r.Expect(byte(k), Forward)
		}
		for _, p := range split(server, seed) {
			if _, err := r.onChunk(p); err != nil {
				return
			}
		}
		if client.Len() > len(server) {
			t.Errorf("%d bytes out of %d", client.Len(), len(server))
		}
	})
}

// TestFrameBehindReady: a message that the server sends unasked behind ReadyForQuery is read to its end; the rest of it
// would be taken for the beginning of the next answer.
func TestFrameBehindReady(t *testing.T) {
	unasked := frame('A', "\x00\x00\x00\x05channel\x00payload\x00")
	for at := 1; at < len(unasked); at++ {
		client := &sink{}
		r := NewRelay()
		r.Bind(client, &journal{relay: r})
		r.Begin()
		r.Expect('Q', Forward)
		if done, err := r.onChunk(stream(row, complete, ready, unasked[:at])); done || err != nil {
			t.Fatalf("with %d bytes of it: done %v, %v", at, done, err)
		}
		if got := client.Bytes(); !bytes.Equal(got, stream(row, complete, ready)) {
			t.Errorf("the client waits: it has %q", got)
		}
		if done, err := r.onChunk(unasked[at:]); !done || err != nil {
			t.Errorf("with all of it: done %v, %v", done, err)
		}
		if got, want := client.Bytes(), stream(row, complete, ready, unasked); !bytes.Equal(got, want) {
			t.Errorf("the client gets %q, want %q", got, want)
		}
		x := execState{sc: &ServerConn{}}
		heard := 0
		x.sc.Hear(func([]byte) { heard++ })
		if done, err := x.onChunk(stream(row, complete, ready, unasked[:at])); done || err != nil {
			t.Fatalf("an exchange of the gateway's own, with %d bytes: done %v, %v", at, done, err)
		}
		if done, err := x.onChunk(unasked[at:]); !done || err != nil || heard != 1 {
			t.Errorf("an exchange of the gateway's own: done %v, %v, heard %d", done, err, heard)
		}
	}
}
