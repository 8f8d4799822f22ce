package backend

import (
	"fmt"
	"time"
)

// Exchange sends out and calls on with each chunk of the answer until that reports done or fails: for answers that are
// read rather than relayed. buf is room to read into. A failure marks the connection broken.
func (sc *ServerConn) Exchange(out, buf []byte, on func(chunk []byte) (done bool, err error)) error {
	if err := sc.conn.Exchange(out, buf, nil, on); err != nil {
		sc.broken = true
		return fmt.Errorf("%s: %w", sc.Node(), err)
	}
	return nil
}

// SetDeadline bounds the waits on the connection; the zero time means no bound.
func (sc *ServerConn) SetDeadline(t time.Time) { _ = sc.conn.SetDeadline(t) }

// FrameSize gives the size of the message at the start of b, its type byte included. b holds at least five bytes.
func FrameSize(b []byte) (int, error) { return frameSize(b) }
