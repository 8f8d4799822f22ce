package pooler

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/copydata"
)

// copyLane is one shard's part of a COPY ... FROM STDIN that is split: a connection whose server waits for data.
type copyLane struct {
	*member
	out     []byte // a CopyData message that grows; empty: none is begun
	held    []byte // the beginning of a message of the server
	lines   lineMap
	columns []byte // of CopyInResponse
	notices []byte
	tag     string
	err     error // why it has failed
	lost    bool  // ... with the connection
	ended   bool  // ReadyForQuery has come
}

// laneSize is how much data is collected before it is sent.
const laneSize = 64 << 10

// begin has the server wait for data.
func (l *copyLane) begin(sql string) {
	l.sc.SetUnnamed(0)
	l.exchange(backend.AppendQuery(nil, sql), func() bool { return l.columns != nil || l.ended })
}

// add adds a row to what is sent next.
func (l *copyLane) add(row copydata.Row, global int64) {
	if len(l.out) == 0 {
		l.out = append(l.out, 'd', 0, 0, 0, 0)
	}
	l.out = append(l.out, row.Raw...)
	l.lines.add(row.Lines, global)
}

// flush sends what is collected; it waits while the server is busy.
func (l *copyLane) flush(buf []byte) {
	if len(l.out) == 0 || l.err != nil {
		return
	}
	out := endMessage(l.out, 0)
	if err := l.sc.Feed(out, buf, l.hear); err != nil {
		l.lose(err)
	}
	if l.out = l.out[:0]; cap(l.out) > 4*laneSize { // after a long row
		l.out = nil
	}
}

// poll hears what the server has said already.
func (l *copyLane) poll(buf []byte) {
	if err := l.sc.Poll(buf, l.hear); err != nil {
		l.lose(err)
	}
}

// end sends the last message, and hears the answer to its end.
func (l *copyLane) end(message []byte) {
	if l.ended || l.lost {
		return
	}
	l.exchange(append(l.out[:0], message...), func() bool { return l.ended })
}

func (l *copyLane) exchange(out []byte, over func() bool) {
	err := l.sc.Exchange(out, make([]byte, memberBuffer), nil, func(chunk []byte) (bool, error) {
		_, err := l.hear(chunk)
		return over(), err
	})
	if err != nil {
		l.lose(err)
	}
}

func (l *copyLane) lose(err error) {
	l.lost = true
	if l.err == nil {
		l.err = lostConnection(l.place.node.ID, err, false)
	}
}

// hear reads what the server says.
func (l *copyLane) hear(chunk []byte) (done bool, err error) {
	if len(l.held) > 0 {
		l.held = append(l.held, chunk...)
		chunk = l.held
	}
	for len(chunk) >= 5 {
		size, err := backend.FrameSize(chunk)
		if err != nil {
			return false, err
		}
		if len(chunk) < size {
			break
		}
		if err := l.message(chunk[0], chunk[:size]); err != nil {
			return false, err
		}
		chunk = chunk[size:]
	}
	l.held = append([]byte(nil), chunk...)
	return l.ended, nil
}

func (l *copyLane) message(typ byte, frame []byte) error {
	body := frame[5:]
	switch typ {
	case 'G':
		l.columns = append([]byte(nil), frame...)
	case 'C':
		l.tag = string(body[:max(len(body)-1, 0)])
	case 'E':
		e := decodeError(body)
		if e == nil {
			return errors.New("an error that can't be read")
		}
		if l.err == nil {
			l.err = l.inClientsLines(e)
		}
		if e.Severity != pgerr.SeverityError {
			return e
		}
	case 'N', 'A':
		l.notices = append(l.notices, frame...)
	case 'S':
		var p pgproto3.ParameterStatus
		if err := p.Decode(body); err != nil {
			return err
		}
		l.sc.Reported([]byte(p.Name), []byte(p.Value))
	case 'Z':
		l.ended = true
		if len(body) == 1 {
			l.sc.SetStatus(body[0])
		}
	}
	return nil
}

// inClientsLines gives an error whose context tells the line as the client has it, not the shard.
func (l *copyLane) inClientsLines(e *pgerr.Error) *pgerr.Error {
	at := strings.LastIndex(e.Where, "COPY ")
	if at < 0 {
		return e
	}
	const word = ", line "
	start := strings.Index(e.Where[at:], word)
	if start < 0 {
		return e
	}
	start += at + len(word)
	end := start
	for end < len(e.Where) && e.Where[end] >= '0' && e.Where[end] <= '9' {
		end++
	}
	line, err := strconv.ParseInt(e.Where[start:end], 10, 64)
	if err != nil {
		return e
	}
	own := *e
	if global := l.lines.find(line); global > 0 {
		own.Where = e.Where[:start] + strconv.FormatInt(global, 10) + e.Where[end:]
	} else { // too long ago
		own.Where = e.Where[:start-len(word)] + e.Where[end:]
	}
	return &own
}

// lineMap tells which line of the client's data a line of a shard's is, for those that were sent lately: the shard may
// still have to read them.
type lineMap struct {
	local int64 // lines sent
	runs  []lineRun
}

// lineRun is lines that follow each other in the client's data too: up to the line local, which is global there.
type lineRun struct{ local, global int64 }

// maxRuns bounds the memory: some megabytes, for more rows than fit into the buffers on the way.
const maxRuns = 1 << 18

// add notes lines, of which the last is the line global.
func (m *lineMap) add(lines int, global int64) {
	m.local += int64(lines)
	if n := len(m.runs); n > 0 && m.runs[n-1].global-m.runs[n-1].local == global-m.local {
		m.runs[n-1] = lineRun{m.local, global}
		return
	}
	if len(m.runs) == maxRuns {
		m.runs = append(m.runs[:0], m.runs[maxRuns/2:]...)
	}
	m.runs = append(m.runs, lineRun{m.local, global})
}

// find gives the client's line of a shard's; 0 when it is not known any more.
func (m *lineMap) find(local int64) int64 {
	if len(m.runs) == maxRuns && local < m.runs[0].local {
		return 0
	}
	for i := range m.runs {
		if r := m.runs[i]; local <= r.local {
			return r.global - (r.local - local)
		}
	}
	if n := len(m.runs); n > 0 { // the line that has not come
		return m.runs[n-1].global + local - m.runs[n-1].local
	}
	return local
}

// rowsOfTag gives the count at the end of a command tag.
func rowsOfTag(tag string) int64 {
	n, _ := strconv.ParseInt(tag[strings.LastIndexByte(tag, ' ')+1:], 10, 64)
	return n
}

// appendCopyFail appends a CopyFail message.
func appendCopyFail(dst []byte, why string) []byte {
	dst = append(dst, 'f')
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(why)+5))
	return append(append(dst, why...), 0)
}
