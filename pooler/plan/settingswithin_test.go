package plan

import (
	"testing"

	"neki/internal/pgerr"
)

// What a server would be told to acknowledge without its replicas is refused wherever it may be said.
func TestRefusedSettings(t *testing.T) {
	p := newPlanner(t, Options{})
	for sql, refused := range map[string]bool{
		"SET synchronous_commit = off":                                                              true,
		"SET LOCAL synchronous_commit TO local":                                                     true,
		"SELECT set_config('synchronous_commit', 'remote_write', false)":                            true,
		"ALTER ROLE r SET synchronous_commit = off":                                                 true,
		"ALTER DATABASE d SET synchronous_commit = 'off'":                                           true,
		"CREATE FUNCTION f() RETURNS int LANGUAGE sql SET synchronous_commit = off AS $$SELECT 1$$": true,
		"ALTER SYSTEM SET synchronous_standby_names = ''":                                           true,
		"ALTER SYSTEM RESET primary_conninfo":                                                       true,
		"ALTER SYSTEM SET work_mem = '8MB'":                                                         false,
		"ALTER ROLE r SET synchronous_commit = on":                                                  false,
		"ALTER ROLE r RESET ALL":                                                                    false,
		"SET synchronous_commit = DEFAULT":                                                          false,
		"CREATE TABLE synchronous_commit (off int)":                                                 false,
	} {
		_, err := p.Plan([]byte(sql), twoShards(), NewEnv("db", "alice", DefaultSearchPath, loaded(t)))
		if (pgerr.Code(err) == pgerr.FeatureNotSupported) != refused {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
