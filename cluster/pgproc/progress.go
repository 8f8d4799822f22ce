package pgproc

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// progressReader reads what pg_basebackup says of its progress out of what it writes, and keeps the rest for an error.
type progressReader struct {
	tell func(done, total int64)
	line []byte
	text bytes.Buffer
}

// mostText bounds what is kept: the end of it is the reason of a failure.
const mostText = 64 << 10

func (r *progressReader) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' && c != '\r' {
			r.line = append(r.line, c)
			continue
		}
		r.end()
	}
	return len(b), nil
}

func (r *progressReader) end() {
	done, total, ok := parseProgress(string(r.line))
	switch {
	case ok && r.tell != nil:
		r.tell(done, total)
	case !ok && len(r.line) > 0:
		if r.text.Len() > mostText {
			r.text.Reset()
		}
		r.text.Write(append(r.line, '\n'))
	}
	r.line = r.line[:0]
}

// parseProgress reads "  12345/67890 kB (18%), 0/1 tablespace (...)".
func parseProgress(line string) (done, total int64, ok bool) {
	numbers, _, ok := strings.Cut(strings.TrimSpace(line), " kB (")
	if !ok {
		return 0, 0, false
	}
	a, b, ok := strings.Cut(numbers, "/")
	if !ok {
		return 0, 0, false
	}
	d, errDone := strconv.ParseInt(a, 10, 64)
	t, errTotal := strconv.ParseInt(b, 10, 64)
	return d << 10, t << 10, errDone == nil && errTotal == nil
}

// runWithProgress runs a program that tells its progress; an error carries the end of its output.
func runWithProgress(ctx context.Context, cmd *exec.Cmd, tell func(done, total int64)) error {
	out := &progressReader{tell: tell}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	out.end()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, tail(out.text.String(), 600))
}
