package pooler

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgproto3"

	"neki/internal/pgerr"
	"neki/pooler/backend"
	"neki/pooler/plan"
)

// naming is a name of a prepared statement that a server gets in place of the client's.
type naming struct {
	at, width int        // of the client's name in its text, in characters; width 0: not in the text at hand
	client    string     // the name
	server    string     // and the server's
	plan      *plan.Plan // in the extended protocol: the statement whose text it is
}

func newNaming(text []byte, start, end int, client string, server []byte) naming {
	return naming{
		at: utf8.RuneCount(text[:start]), width: utf8.RuneCount(text[start:end]), client: client, server: string(server),
	}
}

// longer is how many characters longer the name as sent is. It is sent in quotes.
func (n naming) longer() int { return len(n.server) + 2 - n.width }

// clientError rewrites the body of a server's error in terms of the client's text: names, and the position.
func (c *Session) clientError(index int, body []byte) []byte {
	e := decodeError(body)
	if e == nil {
		return nil
	}
	var p *plan.Plan
	if index < len(c.work.plans) {
		p = c.work.plans[index]
	}
	own := c.work.sql.restore(e, p)
	if s := c.statementAt(index, body); s != nil {
		own.Message = strings.ReplaceAll(own.Message, strconv.Quote(string(s.shared.Name())), `"`+s.name+`"`)
	}
	return encodeError(nil, own)
}

// Reword gives a server's error with the client's name of the statement that it is about. The error of a statement that was
// cancelled to end the session is the session's end, of which the client hears nothing else.
func (c *Session) Reword(index int, body []byte) []byte {
	c.recollect()
	if bytes.Contains(body, []byte("\x00C"+pgerr.QueryCanceled+"\x00")) {
		if c.killedBy() != nil {
			c.dying = true
			c.work.relay.HoldReady = true
			return []byte{}
		}
		if c.deadlock.Load() != nil {
			if err := c.cancellation(); err != errCanceled {
				return encodeError(nil, err)
			}
		}
	}
	if !bytes.Contains(body, []byte(`"`+backend.NamePrefix)) {
		return nil
	}
	s := c.statementAt(index, body)
	e := decodeError(body)
	if s == nil || e == nil {
		return nil
	}
	own := *e
	own.Message = strings.ReplaceAll(e.Message, strconv.Quote(string(s.shared.Name())), `"`+s.name+`"`)
	return encodeError(nil, &own)
}

// statementAt finds the named statement of the request whose answer is expected at index, or any that text names.
func (c *Session) statementAt(index int, text []byte) (found *preparedStatement) {
	for i := range c.work.running {
		o := &c.work.running[i]
		if o.named == nil || !bytes.Contains(text, o.named.shared.Name()) {
			continue
		}
		if found = o.named; o.answer == index {
			break
		}
	}
	return found
}

// add adds a name, unless it is there already: a segment may have several messages about one statement.
func (n *sqlNames) add(name naming) {
	for i := range n.names {
		if have := &n.names[i]; have.plan == name.plan && have.server == name.server {
			if have.width == 0 {
				*have = name
			}
			return
		}
	}
	n.names = append(n.names, name)
}

// restore gives a server's error with the client's names; p is the statement it is about, in the extended protocol.
func (n *sqlNames) restore(e *pgerr.Error, p *plan.Plan) *pgerr.Error {
	out := *e
	position := int(e.Position)
	for _, name := range n.names {
		out.Message = strings.ReplaceAll(out.Message, strconv.Quote(name.server), `"`+name.client+`"`)
		if name.width > 0 && name.plan == p && position > name.at+1 { // earlier names are taken out already
			position = max(name.at+1, position-name.longer())
		}
	}
	out.Position = int32(position)
	return &out
}

// decodeError reads the body of an ErrorResponse, nil when it can't be read.
func decodeError(body []byte) *pgerr.Error {
	var e pgproto3.ErrorResponse
	if e.Decode(body) != nil {
		return nil
	}
	return pgerr.FromResponse(&e)
}
