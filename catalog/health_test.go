package catalog

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLSN(t *testing.T) {
	for _, tc := range []struct {
		text string
		lsn  LSN
		ok   bool
	}{
		{"0/0", 0, true},
		{"0/3000148", 0x3000148, true},
		{"16/B374D848", 0x16_B374D848, true},
		{"FFFFFFFF/FFFFFFFF", 1<<64 - 1, true},
		{"", 0, false},
		{"1", 0, false},
		{"/1", 0, false},
		{"1/", 0, false},
		{"1/2/3", 0, false},
		{"100000000/0", 0, false},
		{"-1/0", 0, false},
	} {
		lsn, err := ParseLSN(tc.text)
		if lsn != tc.lsn || (err == nil) != tc.ok {
			t.Errorf("ParseLSN(%q) = %v, %v", tc.text, lsn, err)
		}
		if tc.ok && lsn.String() != tc.text {
			t.Errorf("%q comes back as %q", tc.text, lsn)
		}
	}
}

func TestHealthJSON(t *testing.T) {
	lag := 3 * time.Second
	h := Health{
		Node: "n1", Role: RoleReplica, State: StateCatchingUp, ReplayLSN: 0x3000148, Streaming: true, Lag: &lag,
		LastMsgAge: time.Second, Ring: []Sample{{Age: time.Second, LSN: 7}},
	}
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back Health
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, back); diff != "" {
		t.Error(diff)
	}
	// A newer agent's words and fields must not break an older gateway.
	if err := json.Unmarshal([]byte(`{"node":"n","state":"levitating","role":"oracle","new":[1]}`), &back); err != nil {
		t.Error(err)
	}
	if back.State != StateUnknown || back.Role != RoleUnknown {
		t.Errorf("%v %v", back.State, back.Role)
	}
}

func TestWords(t *testing.T) {
	for i := range stateWords {
		var s State
		if err := s.UnmarshalText([]byte(State(i).String())); err != nil || s != State(i) {
			t.Errorf("state %d is %q, back %d", i, State(i), s)
		}
	}
	if RoleRdonly.String() != "rdonly" || StateCatchingUp.String() != "catching_up" || State(99).String() != "unknown" {
		t.Error("words have moved")
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"sh1": true, "az-b.1_X": true, "": false, "a/b": false, ".": false, "..": false, "a b": false, "ä": false,
	} {
		if ValidName(name) != want {
			t.Errorf("ValidName(%q) = %t", name, !want)
		}
	}
}

func TestSortableInt(t *testing.T) {
	last := ""
	for _, n := range []int64{0, 9, 10, 99, 1000, 1<<63 - 1} {
		text := sortableInt(n)
		if text <= last || len(text) != 19 {
			t.Errorf("%q after %q", text, last)
		}
		last = text
	}
}
