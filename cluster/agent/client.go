package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"neki/catalog"
	"neki/internal/pgerr"
)

// streamSilence is how long a health stream may say nothing before it counts as broken; it should speak each second.
const streamSilence = 3 * time.Second

// maxLine bounds a report: an hour's ring of samples is some 40 KB.
const maxLine = 1 << 20

// Client calls one agent. It is safe for concurrent use.
type Client struct {
	URL   string
	HTTP  *http.Client // its Timeout must be 0; nil means http.DefaultClient
	Token string
}

// Stream gives the agent's reports as they come, until ctx ends, the caller stops, or an error, which is then the last
// element. A stream that falls silent ends with an error.
func (c *Client) Stream(ctx context.Context) iter.Seq2[catalog.Health, error] {
	return func(yield func(catalog.Health, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(streamSilence, func() {
			cancel(fmt.Errorf("agent at %s: no report for %v", c.URL, streamSilence))
		})
		defer silence.Stop()
		resp, err := c.send(ctx, http.MethodGet, "health", nil)
		if err != nil {
			yield(catalog.Health{}, orCause(ctx, err))
			return
		}
		defer resp.Body.Close() //nolint:errcheck // it was read only
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(make([]byte, 0, 16<<10), maxLine)
		for lines.Scan() {
			silence.Reset(streamSilence)
			var h catalog.Health
			if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
				yield(h, fmt.Errorf("agent at %s: %w", c.URL, err))
				return
			}
			if !yield(h, nil) {
				return
			}
		}
		err = lines.Err()
		if err == nil {
			err = fmt.Errorf("agent at %s: %w", c.URL, io.ErrUnexpectedEOF)
		}
		yield(catalog.Health{}, orCause(ctx, err))
	}
}

func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Status asks what the agent is and does.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "status", nil, &s)
}

// Provision fills an empty instance.
func (c *Client) Provision(ctx context.Context, o ProvisionOrder) (Result, error) {
	return c.order(ctx, "provision", o)
}

// Lead sets a primary's slots and synchronous standbys.
func (c *Client) Lead(ctx context.Context, o LeadOrder) (Result, error) {
	return c.order(ctx, "lead", o)
}

// Follow points a standby at its source.
func (c *Client) Follow(ctx context.Context, o FollowOrder) (Result, error) {
	return c.order(ctx, "follow", o)
}

// Apply sets roles and stubs in a primary's databases.
func (c *Client) Apply(ctx context.Context, o ApplyOrder) (Result, error) {
	return c.order(ctx, "apply", o)
}

// Stop stops Postgres until Start.
func (c *Client) Stop(ctx context.Context, o StopOrder) (Result, error) {
	return c.order(ctx, "stop", o)
}

// Start starts a stopped Postgres, by the restart rule.
func (c *Client) Start(ctx context.Context, o Order) (Result, error) { return c.order(ctx, "start", o) }

// Recruit has the node acknowledge nothing more below the order's term.
func (c *Client) Recruit(ctx context.Context, o Order) (Result, error) {
	return c.order(ctx, "recruit", o)
}

// Promote makes the node the primary of the order's term; it returns once the barrier is acknowledged.
func (c *Client) Promote(ctx context.Context, o LeadOrder) (Result, error) {
	return c.order(ctx, "promote", o)
}

// Fence has a primary acknowledge nothing more.
func (c *Client) Fence(ctx context.Context, o FenceOrder) (Result, error) {
	return c.order(ctx, "fence", o)
}

// Unfence has a primary that resigned take clients again.
func (c *Client) Unfence(ctx context.Context, o LeadOrder) (Result, error) {
	return c.order(ctx, "unfence", o)
}

// Resume lets a standby's replay go on.
func (c *Client) Resume(ctx context.Context, o Order) (Result, error) {
	return c.order(ctx, "resume", o)
}

// Rewind runs pg_rewind from the source, and follows it.
func (c *Client) Rewind(ctx context.Context, o ReplaceOrder) (Result, error) {
	return c.order(ctx, "rewind", o)
}

// Rebuild copies the source anew, and follows it.
func (c *Client) Rebuild(ctx context.Context, o ReplaceOrder) (Result, error) {
	return c.order(ctx, "rebuild", o)
}

// Restart stops and starts Postgres.
func (c *Client) Restart(ctx context.Context, o Order) (Result, error) {
	return c.order(ctx, "restart", o)
}

// Configure sets the parameters of the instance's profile.
func (c *Client) Configure(ctx context.Context, o ConfigureOrder) (Result, error) {
	return c.order(ctx, "configure", o)
}

// Reload has Postgres read its configuration again.
func (c *Client) Reload(ctx context.Context, o Order) (Result, error) {
	return c.order(ctx, "reload", o)
}

func (c *Client) order(ctx context.Context, name string, o any) (Result, error) {
	var r Result
	return r, c.call(ctx, http.MethodPost, name, o, &r)
}

func (c *Client) call(ctx context.Context, method, name string, in, out any) error {
	resp, err := c.send(ctx, method, name, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read only
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("agent at %s: %s: %w", c.URL, name, err)
	}
	return nil
}

// send makes one request; any answer but 200 is an error, the agent's own where it gave one.
func (c *Client) send(ctx context.Context, method, name string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+"/v1/"+name, body)
	if err != nil {
		return nil, err
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close() //nolint:errcheck // it was read only
	return nil, c.refusal(resp, name)
}

func (c *Client) refusal(resp *http.Response, name string) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var p problem
	if err == nil && json.Unmarshal(text, &p) == nil && p.Code != "" {
		return p.asError()
	}
	return errors.Join(pgerr.New(pgerr.SystemError, "agent at %s: %s: %s: %s", c.URL, name, resp.Status, bytes.TrimSpace(text)), err)
}
