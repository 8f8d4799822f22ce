package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"neki/internal/pgerr"
)

// operation is a row of neki.operations as commands show it.
type operation struct {
	ID         string  `json:"id"`
	Kind       string  `json:"kind"`
	Target     string  `json:"target"`
	State      string  `json:"state"`
	Progress   float64 `json:"progress"`
	Step       string  `json:"step,omitempty"`
	BytesDone  int64   `json:"bytes_done,omitempty"`
	BytesTotal int64   `json:"bytes_total,omitempty"`
	Error      string  `json:"error,omitempty"`
}

const operationQuery = `SELECT id, kind, coalesce(target, ''), state, progress, coalesce(step, ''), coalesce(bytes_done, 0),
	coalesce(bytes_total, 0), coalesce(error, '') FROM neki.operations WHERE id = $1`

// followEvery is how often an operation is looked at.
const followEvery = 200 * time.Millisecond

// callLong asks for a long action and follows it. Ctrl-C ends the following, not the action.
func callLong(c *cli.Context, conn *pgx.Conn, procedure string, args []sqlArgument) error {
	sql, values := callText(procedure, append(args, sqlArgument{"wait", false}))
	var id string
	if err := conn.QueryRow(c.Context, sql, values...).Scan(&id); err != nil {
		return err
	}
	if !c.Bool("no-wait") {
		return follow(c, conn, id)
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(map[string]string{"id": id})
	}
	_, err := fmt.Fprintf(c.App.Writer, "operation %s\n%s", id, nextCommands(id))
	return err
}

func nextCommands(id string) string {
	return fmt.Sprintf("  follow it:  neki operations wait %s\n  end it:     neki operations cancel %s\n", id, id)
}

// follow shows an operation's progress until it has ended, and fails if that failed.
func follow(c *cli.Context, conn *pgx.Conn, id string) error {
	show := newDisplay(c.App.ErrWriter)
	for {
		op, err := readOperation(c.Context, conn, id)
		if c.Context.Err() != nil {
			show.end()
			fmt.Fprintf(c.App.ErrWriter, "neki: no longer following operation %s, which goes on\n%s", id, nextCommands(id))
			return c.Context.Err()
		}
		if err != nil {
			show.end()
			return err
		}
		show.update(op)
		switch op.State {
		case "done", "failed", "cancelled":
			show.end()
			return finished(c, op)
		}
		if !pause(c.Context, followEvery) {
			continue
		}
	}
}

func readOperation(ctx context.Context, conn *pgx.Conn, id string) (*operation, error) {
	rows, err := conn.Query(ctx, operationQuery, id)
	if err != nil {
		return nil, err
	}
	op, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[operation])
	if err == pgx.ErrNoRows { //nolint:errorlint // as documented
		return nil, pgerr.New(pgerr.InvalidParameterValue, "no operation has the id %q", id).
			WithHint("neki operations lists them.")
	}
	return op, err
}

// finished says how an operation ended.
func finished(c *cli.Context, op *operation) error {
	if c.Bool("json") {
		if err := json.NewEncoder(c.App.Writer).Encode(op); err != nil {
			return err
		}
	}
	if op.State != "done" {
		return pgerr.New(pgerr.ObjectNotInPrerequisiteState, "%s of %s %s: %s", op.Kind, op.Target, op.State, op.Error).
			WithHint("SELECT * FROM neki.events shows what was tried.")
	}
	if c.Bool("json") {
		return nil
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s of %s done%s\n", op.Kind, op.Target, colonIf(op.Step))
	return err
}

func colonIf(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// display shows progress: a bar on a terminal, else a line for each step.
type display struct {
	w     io.Writer
	width int // of the terminal; 0: it is none
	last  string
	drawn bool
}

func newDisplay(w io.Writer) *display {
	d := &display{w: w}
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			d.width = max(int(size.Col), 40)
		}
	}
	return d
}

func (d *display) update(op *operation) {
	if d.width > 0 {
		fmt.Fprintf(d.w, "\r\x1b[K%s", barLine(op, d.width-1))
		d.drawn = true
		return
	}
	if op.Step != "" && op.Step != d.last && op.State == "running" {
		d.last = op.Step
		fmt.Fprintf(d.w, "%3.0f %%  %s\n", 100*op.Progress, op.Step)
	}
}

func (d *display) end() {
	if d.drawn {
		fmt.Fprint(d.w, "\r\x1b[K")
	}
}

const barWidth = 24

// barLine draws progress in at most width columns.
func barLine(op *operation, width int) string {
	full := int(op.Progress*barWidth + .5)
	line := fmt.Sprintf("[%s%s] %3.0f %% ", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), 100*op.Progress)
	if op.BytesTotal > 0 {
		line += fmt.Sprintf("%s of %s ", byteText(op.BytesDone), byteText(op.BytesTotal))
	}
	switch {
	case op.Error != "":
		line += op.Step + " after: " + op.Error
	case op.State == "pending":
		line += "waits for its turn"
	default:
		line += op.Step
	}
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width])
	}
	return strings.TrimRight(line, " ")
}

// byteText writes a number of bytes as people read it.
func byteText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, "KMGTP"
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %cB", value, units[0])
}
