package pooler

import (
	"fmt"
	"slices"
	"testing"

	"neki/catalog"
	"neki/internal/pgerr"
)

const notifyingTrigger = `CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM pg_notify('news', NEW.k::text); RETURN NEW; END $$;
	CREATE TRIGGER told AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION told()`

// TestListenersHearAllShards: whichever shard notifies, and in whichever transaction, a client that listens hears it.
func TestListenersHearAllShards(t *testing.T) {
	for _, size := range poolSizes {
		t.Run(fmt.Sprintf("pool of %d", size), func(t *testing.T) {
			s := startTwoShards(t, gatewayOptions{parameters: poolOf(size)})
			s.everywhere(notifyingTrigger)
			s.learn()
			listener, again, sender := s.connect(""), s.connect(""), s.connect("")
			simple(t, listener, "LISTEN news")
			s.listensFree()
			simple(t, again, "BEGIN; LISTEN news; COMMIT; SHOW __neki.shard")
			s.listensFree()
			for _, sql := range []string{
				"INSERT INTO t (k) VALUES (1)", "INSERT INTO t (k) VALUES (2)", "INSERT INTO t (k) VALUES (11), (2002)",
				"BEGIN; INSERT INTO t (k) VALUES (21); INSERT INTO t (k) VALUES (2022); NOTIFY news, 'own'; COMMIT",
				"INSERT INTO t (k) VALUES (31); SHOW __neki.shard; INSERT INTO t (k) VALUES (2032)",
			} {
				simple(t, sender, sql)
			}
			want := []string{"1", "11", "2", "2002", "2022", "2032", "21", "31", "own"}
			for name, conn := range map[string]func() string{
				"listener": func() string { return notified(t, listener) }, "another": func() string { return notified(t, again) },
			} {
				var got []string
				for range want {
					got = append(got, conn())
				}
				if slices.Sort(got); !slices.Equal(got, want) {
					t.Errorf("%s heard %v, want %v", name, got, want)
				}
			}
			simple(t, sender, "BEGIN; INSERT INTO t (k) VALUES (41); INSERT INTO t (k) VALUES (2042); ROLLBACK; NOTIFY news, 'last'")
			if got := notified(t, listener); got != "last" {
				t.Errorf("of a transaction that was rolled back: %s", got)
			}
		})
	}
}

// TestNewShardIsListenedTo: a shard that is added while clients listen is heard too, and one whose primary changes ends them.
func TestNewShardIsListenedTo(t *testing.T) {
	s := startTwoShards(t, gatewayOptions{})
	listener := s.connect("")
	simple(t, listener, "LISTEN news")
	s.listensFree()
	server, ctx := sharedServers.get(t, 3)[2], t.Context()
	s.createDatabase(server, s.dbname)
	n := catalog.Node{ID: "sh3-a", Shard: "sh3", Role: catalog.RolePrimary, Cell: "az-a", Host: server.Host(), Port: server.Port(), Desired: catalog.DesiredRun}
	if _, err := catalog.PutNode(ctx, s.store, testCluster, n, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.PutShard(ctx, s.store, testCluster, catalog.Shard{UID: "sh3", Name: "sh3", Primary: n.ID, Term: 1, Ready: true}, 0); err != nil {
		t.Fatal(err)
	}
	s.servers = append(slices.Clone(s.servers), server)
	eventually(t, "the new shard is listened to", func() bool {
		return len(s.onShard(3, "SELECT FROM pg_stat_activity WHERE application_name = 'neki notifications' AND datname = current_database() AND query LIKE '%news%'")) == 1
	})
	s.onShard(3, "NOTIFY news, 'of the third'")
	if got := notified(t, listener); got != "of the third" {
		t.Error(got)
	}
	if _, err := catalog.UpdateShard(ctx, s.store, testCluster, "sh3", func(shard *catalog.Shard) error { shard.Primary, shard.Term = "sh3-b", 2; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.WaitForNotification(ctx); pgerr.Code(err) != pgerr.ConnectionFailure {
		t.Errorf("after a change of the primary: %v", err)
	}
}
