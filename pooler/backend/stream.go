package backend

import (
	"fmt"
	"time"
)

// Exchange sends out and calls on with each chunk of the answer until that reports done or fails: for answers that are
// read rather than relayed. buf is room to read into; more, if not nil, gives more of it for a long answer. A failure marks the
// connection broken.
func (sc *ServerConn) Exchange(out, buf []byte, more func() []byte, on func(chunk []byte) (done bool, err error)) error {
	if err := sc.conn.Exchange(out, buf, more, on); err != nil {
		sc.broken = true
		return fmt.Errorf("%s: %w", sc.Node(), err)
	}
	return nil
}

// Translator puts OIDs of types that clients know in place of the server's, in one answer that is read rather than relayed.
// The zero Translator changes nothing.
type Translator struct {
	types *Types
	shape rowShape
}

// Translator gives one for the next answer, and out with the server's OIDs.
func (sc *ServerConn) Translator(out []byte) (Translator, []byte, error) {
	if sc.types == nil {
		return Translator{}, out, nil
	}
	out, err := sc.types.toShard(out)
	return Translator{types: sc.types}, out, err
}

// Message changes the body of a message that is no row.
func (t *Translator) Message(typ byte, body []byte) (err error) {
	if t.types == nil {
		return nil
	}
	switch typ {
	case 'T':
		t.shape, _, err = t.types.describe(body)
	case 't':
		err = t.types.parameters(body)
	}
	return err
}

// Row changes a DataRow message.
func (t *Translator) Row(frame []byte) error {
	if t.shape == nil || frame[0] != 'D' {
		return nil
	}
	return t.types.row(frame[5:], t.shape)
}

// Feed sends out, and calls on with what the server says meanwhile, without waiting for more: COPY data. A failure marks
// the connection broken.
func (sc *ServerConn) Feed(out, buf []byte, on func(chunk []byte) (done bool, err error)) error {
	if _, err := sc.conn.Send(out, buf, on); err != nil {
		sc.broken = true
		return fmt.Errorf("%s: %w", sc.Node(), err)
	}
	return nil
}

// Poll calls on with what the server has sent already.
func (sc *ServerConn) Poll(buf []byte, on func(chunk []byte) (done bool, err error)) error {
	for {
		n, err := sc.conn.TryRead(buf)
		if err == nil && n == 0 {
			return nil
		}
		if err == nil {
			_, err = on(buf[:n])
		}
		if err != nil {
			sc.broken = true
			return fmt.Errorf("%s: %w", sc.Node(), err)
		}
	}
}

// SetDeadline bounds the waits on the connection; the zero time means no bound.
func (sc *ServerConn) SetDeadline(t time.Time) { _ = sc.conn.SetDeadline(t) }

// FrameSize gives the size of the message at the start of b, its type byte included. b holds at least five bytes.
func FrameSize(b []byte) (int, error) { return frameSize(b) }
