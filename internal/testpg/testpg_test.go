package testpg_test

import (
	"context"
	"testing"
	"time"

	"neki/internal/testpg"
)

func TestStart(t *testing.T) {
	begin := time.Now()
	s := testpg.Start(t, testpg.Setting("work_mem", "5MB"))
	t.Logf("up in %v", time.Since(begin))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := s.Conn(ctx)
	var one int
	var mem string
	if err := c.QueryRow(ctx, "SELECT 1, current_setting('work_mem')").Scan(&one, &mem); err != nil || one != 1 || mem != "5MB" {
		t.Fatalf("got %d, %q, %v", one, mem, err)
	}
	s.Set("work_mem", "6MB")
	if got := s.Text("SELECT current_setting('work_mem')"); got != "6MB" {
		t.Fatalf("work_mem = %s after Set", got)
	}
	s.Kill()
	if s.PID() != 0 {
		t.Fatal("still running after Kill")
	}
	if _, err := s.Connect(ctx); err == nil {
		t.Fatal("connected to a killed server")
	}
	s.Restart()
	if got := s.Text("SELECT pg_is_in_recovery()"); got != "false" {
		t.Fatalf("after a restart in_recovery = %s", got)
	}
}

func TestCluster(t *testing.T) {
	begin := time.Now()
	g := testpg.Cluster(t, 2)
	t.Logf("up in %v", time.Since(begin))
	g.Primary.Exec("CREATE TABLE t (id int)")
	g.Primary.Exec("INSERT INTO t VALUES (1)")
	g.WaitCaughtUp()
	paused, cut := g.Replicas[0], g.Replicas[1]
	paused.PauseReplay()
	cut.StopWALReceiver()
	g.Primary.Exec("INSERT INTO t VALUES (2)")
	lsn := g.Primary.Text("SELECT pg_current_wal_lsn()")
	paused.Eventually("receipt", "SELECT pg_last_wal_receive_lsn() >= '"+lsn+"'::pg_lsn")
	for _, r := range g.Replicas {
		if got := r.Text("SELECT count(*) FROM t"); got != "1" {
			t.Errorf("%s sees %s rows, want 1", r.Name, got)
		}
	}
	paused.ResumeReplay()
	cut.StartWALReceiver()
	g.WaitCaughtUp()
	cut.Promote()
	cut.Exec("INSERT INTO t VALUES (3)")
	if got := cut.Text("SELECT count(*) FROM t"); got != "3" {
		t.Errorf("promoted replica has %s rows, want 3", got)
	}
}
