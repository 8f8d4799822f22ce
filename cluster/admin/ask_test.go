package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"neki/catalog"
	"neki/cluster/agent"
)

// An agent that swallows every question costs one look its time limit, and no later one; when it answers again, the loop
// is told.
func TestSilentAgent(t *testing.T) {
	var silent atomic.Pointer[chan struct{}]
	held := make(chan struct{})
	silent.Store(&held)
	serve := func(node string, wait bool) *httptest.Server {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if wait {
				select {
				case <-*silent.Load():
				case <-r.Context().Done():
				}
			}
			_ = json.NewEncoder(w).Encode(agent.Status{Node: node})
		}))
		t.Cleanup(srv.Close)
		return srv
	}
	a := &Admin{http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(a.http.CloseIdleConnections)
	s := &shardLoop{l: &leader{a: a}, wake: make(chan struct{}, 1)}
	defer s.jobs.Wait()
	nodes := []*catalog.Node{{ID: "a", AgentURL: serve("a", false).URL}, {ID: "b", AgentURL: serve("b", true).URL}}

	s.askAll(t.Context(), nodes) // b has its time to answer
	list := s.askAll(t.Context(), nodes)
	if !list[0].Known || list[1].Known {
		t.Errorf("a is known: %v, b: %v", list[0].Known, list[1].Known)
	}
	if begun, _ := s.ask.begin("b"); begun {
		t.Fatal("the second look waited for b to the end")
	}
	close(held)
	select {
	case <-s.wake:
	case <-time.After(10 * time.Second):
		t.Fatal("the loop was not told that b answered")
	}
	if list = s.askAll(t.Context(), nodes); !list[0].Known || !list[1].Known {
		t.Errorf("a is known: %v, b: %v", list[0].Known, list[1].Known)
	}
}
