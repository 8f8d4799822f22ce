package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"neki/catalog"
	"neki/internal/pgerr"
)

// words shows nodes as "id:role:cell".
func words(nodes []devNode) string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.ID+":"+n.Role.String()+":"+n.Cell)
	}
	return strings.Join(list, " ")
}

func TestStateFitsFlags(t *testing.T) {
	all := map[string]bool{"shards": true, "replicas": true, "rdonly": true}
	small := devOptions{shards: 1, replicas: 1}
	for _, tc := range []struct {
		name  string
		first devOptions // of the first start
		then  devOptions // of the second
		want  string
		fails string
	}{
		{
			name: "new", first: small, then: devOptions{shards: 7, replicas: 7},
			want: "sh1-a:replica: sh1-b:replica:",
		},
		{
			name: "grows", first: small, then: devOptions{shards: 2, replicas: 2, rdonly: 1, given: all},
			want: "sh1-a:replica: sh1-b:replica: sh1-c:replica: sh1-d:rdonly: sh2-a:replica: sh2-b:replica: sh2-c:replica: sh2-d:rdonly:",
		},
		{
			name: "grows behind rdonly", first: devOptions{shards: 1, replicas: 1, rdonly: 1},
			then: devOptions{shards: 1, replicas: 2, rdonly: 1, given: all},
			want: "sh1-a:replica: sh1-b:replica: sh1-c:rdonly: sh1-d:replica:",
		},
		{
			name: "cells", first: devOptions{shards: 2, replicas: 2, cells: []string{"x", "y"}}, then: devOptions{},
			want: "sh1-a:replica:y sh1-b:replica:x sh1-c:replica:y sh2-a:replica:y sh2-b:replica:x sh2-c:replica:y",
		},
		{name: "fewer shards", first: devOptions{shards: 2}, then: devOptions{shards: 1, given: all}, fails: "--shards 1"},
		{
			name: "fewer replicas", first: devOptions{shards: 1, replicas: 2},
			then: devOptions{shards: 1, replicas: 1, given: all}, fails: "--replicas 1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.first.data, tc.then.data = dir, dir
			first, err := loadState(&tc.first)
			if err != nil {
				t.Fatal(err)
			}
			second, err := loadState(&tc.then)
			if tc.fails != "" {
				if e, ok := errors.AsType[*pgerr.Error](err); !ok || !strings.Contains(e.Message, tc.fails) || e.Hint == "" {
					t.Fatalf("error %v, want %s", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := words(second.Nodes); got != tc.want {
				t.Errorf("nodes %s\nwant  %s", got, tc.want)
			}
			if first.Password != second.Password || first.Password == "" {
				t.Errorf("password %q, then %q", first.Password, second.Password)
			}
			ports := map[string]int{}
			used := map[int]bool{second.Gateway: true}
			for _, n := range second.Nodes {
				ports[n.ID] = n.Port
				if used[n.Port] || n.Port == 0 {
					t.Errorf("port %d of %s is no new one", n.Port, n.ID)
				}
				used[n.Port] = true
			}
			for _, n := range first.Nodes {
				if ports[n.ID] != n.Port {
					t.Errorf("port of %s was %d, is %d", n.ID, n.Port, ports[n.ID])
				}
			}
			if st, err := os.Stat(filepath.Join(dir, stateFile)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v", stateFile, st.Mode(), err)
			}
		})
	}
}

func TestStateLeavesTakenPort(t *testing.T) {
	o := devOptions{data: t.TempDir(), shards: 1}
	s, err := loadState(&o)
	if err != nil {
		t.Fatal(err)
	}
	taken := s.Nodes[0].Port
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(taken)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	if s, err = loadState(&o); err != nil || s.Nodes[0].Port == taken {
		t.Errorf("port %d, want another one than %d: %v", s.Nodes[0].Port, taken, err)
	}
	// Unless it is the server of this node that was left running: this process stands for it.
	dir := filepath.Join(nodeDir(o.data, s.Nodes[0].ID), "data")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pidFile := strings.Join([]string{strconv.Itoa(os.Getpid()), dir, "0", strconv.Itoa(taken), ""}, "\n")
	if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(pidFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Nodes[0].Port = taken
	if err := s.choosePorts(o.data); err != nil || s.Nodes[0].Port != taken {
		t.Errorf("port %d, want that of the running server, %d: %v", s.Nodes[0].Port, taken, err)
	}
}

func TestLockData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	unlock, err := lockData(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockData(dir); err == nil || !strings.Contains(err.Error(), "another neki dev (pid "+strconv.Itoa(os.Getpid())+")") {
		t.Errorf("second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = lockData(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestTokenStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), tokenFile)
	first, err := ensureToken(path)
	if err != nil || len(first) < 20 {
		t.Fatal(first, err)
	}
	second, err := ensureToken(path)
	if diff := cmp.Diff(first, second); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"plain": "'plain'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestMissing(t *testing.T) {
	d := dev{state: devState{Nodes: []devNode{{ID: "sh1-a", Shard: "sh1"}, {ID: "sh1-b", Shard: "sh1"}}}}
	primaries, others := d.missing(&catalog.Snapshot{})
	if len(primaries) != 1 || len(others) != 2 || others[0] != "instance sh1-a (unknown)" {
		t.Errorf("%q %q", primaries, others)
	}
}

// What SQL has added and removed is there at the next start, in its cell, also when shards are added then.
func TestStateKeepsWhatSQLChanged(t *testing.T) {
	o := devOptions{data: t.TempDir(), shards: 2, replicas: 1, cells: []string{"x", "y"}}
	s, err := loadState(&o)
	if err != nil {
		t.Fatal(err)
	}
	s.Nodes = append(s.Nodes[:3], devNode{ID: "sh1-d", Shard: "sh1", Role: catalog.RoleReplica, Cell: "y", Port: 1, Added: true})
	if err := s.save(filepath.Join(o.data, stateFile)); err != nil {
		t.Fatal(err)
	}
	o = devOptions{data: o.data, cells: []string{"x"}}
	if s, err = loadState(&o); err != nil {
		t.Fatal(err)
	}
	if want := "sh1-a:replica:x sh1-b:replica:x sh1-d:replica:y sh2-a:replica:x"; words(s.Nodes) != want {
		t.Errorf("nodes %s\nwant  %s", words(s.Nodes), want)
	}
	o = devOptions{data: o.data, shards: 3, given: map[string]bool{"shards": true}}
	if s, err = loadState(&o); err != nil {
		t.Fatal(err)
	}
	want := "sh1-a:replica:x sh1-b:replica:x sh1-d:replica:y sh2-a:replica:x sh3-a:replica: sh3-b:replica: sh3-c:replica:"
	if words(s.Nodes) != want {
		t.Errorf("nodes %s\nwant  %s", words(s.Nodes), want)
	}
}
