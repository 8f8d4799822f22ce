package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const wholeConfig = `
cluster: main
id: gw1
cell: az-a
listen: ["127.0.0.1:5432", "[::1]:5432"]
socket-dir: /run/neki
http: 127.0.0.1:8080
debug: 127.0.0.1:6060
log-level: debug
tls: {cert: c.pem, key: k.pem, ca: ca.pem}
rpc:
  listen: :7000
  url: https://gw1:7000
  tls: {cert: a, key: b, ca: c}
etcd:
  endpoints: [http://127.0.0.1:2379]
auth:
  rules:
  - {type: hostssl, database: "shop, all", user: all, address: 10.0.0.0/8, method: scram-sha-256}
  - {type: local, method: trust}
  - "host all all all reject # text"
  maps: ["m alice@x alice"]
  passwords-file: p
agent:
  data: /data
  postgres-bin: /usr/lib/postgresql/15/bin
  postgres-user: postgres
  shard: sh1
  role: rdonly
  host: db1
  port: 5433
backup:
  s3: {endpoint: "s3.local:9000", bucket: b, prefix: p, region: r, access-key: k, secret-key-file: f, ca: ca.pem}
  interval: 6h
  retention: 7 days
  max-rate: 50
parameters:
  replication-lag-tolerable-min: 1h
  replication-lag-tolerable-max: 2h
  pool-capacity: 5
`

func TestLoadConfig(t *testing.T) {
	c, err := LoadConfig(strings.NewReader(wholeConfig))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Cluster: "main", ID: "gw1", Cell: "az-a", Listen: []Listener{{Address: "127.0.0.1:5432"}, {Address: "[::1]:5432"}},
		SocketDir: "/run/neki", HTTP: "127.0.0.1:8080", Debug: "127.0.0.1:6060", LogLevel: "debug",
		TLS:  TLS{"c.pem", "k.pem", "ca.pem"},
		RPC:  RPC{Listen: ":7000", URL: "https://gw1:7000", TLS: TLS{"a", "b", "c"}},
		Etcd: Etcd{Endpoints: []string{"http://127.0.0.1:2379"}},
		Auth: Auth{
			Rules: []AuthRule{
				"hostssl shop,all all 10.0.0.0/8 scram-sha-256", "local all all trust", "host all all all reject # text",
			},
			Maps: []string{"m alice@x alice"}, PasswordsFile: "p",
		},
		Agent: Agent{"/data", "/usr/lib/postgresql/15/bin", "postgres", "sh1", "rdonly", "db1", 5433, TLS{}},
		Backup: Backup{
			S3:       S3{"s3.local:9000", "b", "p", "r", "k", "f", "ca.pem"},
			Interval: "6h", Retention: "7 days", MaxRate: 50,
		},
		Parameters: map[string]string{
			"replication-lag-tolerable-min": "1h", "replication-lag-tolerable-max": "2h", "pool-capacity": "5",
		},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	p, err := c.Values()
	if err != nil || p.LagMin != time.Hour || p.PoolCapacity != 5 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", ""},
		{"comment only", "# nothing\n", ""},
		{"unknown key", "cluster: a\nlisen: [x]\n", `neki.yaml: line 2: unknown key "lisen" (perhaps you meant "listen")`},
		{"unknown key within", "agent:\n  dta: x\n", `neki.yaml: line 2: unknown key "agent.dta" (perhaps you meant "agent.data")`},
		{"unknown key in a list", "auth:\n  rules:\n  - {type: local, metod: trust}\n", `line 3: unknown key "auth.rules.metod"`},
		{"two problems", "a: 1\nb: 2\n", `line 1: unknown key "a"; line 2: unknown key "b"`},
		{"syntax", "cluster: [\n", "line"},
		{"type", "agent:\n  port: many\n", "line 2: cannot unmarshal"},
		{"not a mapping", "just text", "line 1: cannot unmarshal"},
		{"cluster", "cluster: a/b\n", `line 1: cluster: "a/b" is not a name`},
		{"address", "cluster: a\nhttp: 8080\n", `line 2: http: "8080" is not host:port`},
		{"listen", "listen: [localhost]\n", `line 1: listen.0: "localhost" is not host:port`},
		{"listen, long form", "listen:\n- {address: \":1\", proxy: [x]}\n", `line 2: unknown key "listen.proxy"`},
		{"proxies", "listen:\n- {address: \":1\", proxy-from: [x]}\n", `line 2: listen.0.proxy-from.0: "x" is not an address range`},
		{"proxies of a socket", "listen: [{address: /run, proxy-from: [10.0.0.0/8]}]", "not used with a Unix socket"},
		{"mode", "listen: [{address: /run, mode: rwx}]", `listen.0.mode: "rwx" is not permissions`},
		{"mode of TCP", "listen: [{address: \":1\", mode: 0777}]", "only a Unix socket has one"},
		{"two lists of rules", "auth: {hba-file: x, rules: [local all all trust]}", "auth.hba-file: not used with auth.rules"},
		{"map", "auth: {maps: [a b]}", "auth.maps.0: line 1: a line has the map's name"},
		{"trusted without a certificate", "auth: {trusted-by-instances: true}", "needs backend.cert"},
		{"role", "agent:\n  role: primary\n", `line 2: agent.role: "primary" is not one of replica, rdonly`},
		{"half a certificate", "tls: {cert: a}\n", `line 1: tls: cert and key belong together`},
		{"port", "agent: {port: 70000}\n", `line 1: agent.port: not a port`},
		{"method", "auth: {rules: [{type: host, method: guess}]}", `line 1: auth.rules.0: method "guess" is not one of reject, trust, scram-sha-256`},
		{"range", "auth: {rules: [{type: host, method: md5, address: here}]}", `auth.rules.0: address "here" is not an address range`},
		{
			"parameter", "parameters:\n  pool-capacity: 5\n  buffer-windw: 1s\n",
			`line 3: parameters.buffer-windw: unrecognized gateway or admin parameter "buffer-windw" (Perhaps you meant "buffer-window".)`,
		},
		{"parameter value", "parameters:\n  pool-capacity: lots\n", `line 2: parameters.pool-capacity: invalid value`},
		{"parameters together", "parameters:\n  replication-lag-tolerable-min: 1h\n", `line 2: parameters: replication-lag-tolerable-min (1h) is greater`},
		{"two places for backups", "backup: {directory: /a, s3: {bucket: b}}", "line 1: backup.directory: not used with backup.s3"},
		{"no bucket", "backup: {s3: {endpoint: a}}", "line 1: backup.s3: bucket is missing"},
		{"half a key", "backup: {s3: {bucket: b, access-key: a}}", "access-key and secret-key-file belong together"},
		{"backup interval", "backup: {interval: often}", `backup.interval: "often" is no interval`},
		{"backup retention", "backup: {retention: 0}", "backups must be kept for some time"},
		{"backup rate", "backup: {max-rate: -1}", "backup.max-rate: less than 0"},
		{"token beside tls", "rpc: {token-file: x, tls: {cert: a, key: b}}", "rpc.token-file: not used with rpc.tls"},
	} {
		_, err := LoadConfig(strings.NewReader(tc.text))
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
