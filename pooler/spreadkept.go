package pooler

import (
	"context"
	"io"

	"neki/exec"
	"neki/internal/pgerr"
)

// openLeg gives the rows of a leg. One that the engine may read again and again, as in a subquery that runs for each row
// around it, is read into memory at first.
func (s *spread) openLeg(leg int) (exec.Node, error) {
	l := s.legs[leg]
	if !l.leg.Keep {
		if l.opened {
			return nil, pgerr.New(pgerr.InternalError, "a leg that was to be read once is read again")
		}
		l.opened = true
		return l, nil
	}
	if !l.opened {
		l.opened = true
		if err := l.readAll(); err != nil {
			return nil, err
		}
	}
	return &keptRows{batches: l.kept}, nil
}

// readAll reads the leg into memory.
func (l *legNode) readAll() error {
	if err := l.start(); err != nil {
		return err
	}
	return l.keepRest()
}

// keptRows gives the rows of a leg that are in memory. The leg owns them.
type keptRows struct{ batches []*exec.Batch }

// Next implements exec.Node.
func (n *keptRows) Next(context.Context) (*exec.Batch, error) {
	if len(n.batches) == 0 {
		return nil, io.EOF
	}
	b := n.batches[0]
	n.batches = n.batches[1:]
	return b, nil
}

// Close implements exec.Node.
func (n *keptRows) Close() error { return nil }
