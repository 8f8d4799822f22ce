package settings

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"neki/internal/pgerr"
)

// Config is neki.yaml: what `neki gateway`, `neki agent` and `neki admin` need to know before they can ask the
// cluster. One file describes one process.
type Config struct {
	Cluster   string     `yaml:"cluster"`    // name of the cluster; default "main"
	ID        string     `yaml:"id"`         // this gateway's, agent's (= node's) or admin's
	Cell      string     `yaml:"cell"`       // availability zone
	Listen    []Listener `yaml:"listen"`     // gateway: where Postgres clients connect
	SocketDir string     `yaml:"socket-dir"` // gateway: directory of the Unix socket; "" = none
	HTTP      string     `yaml:"http"`       // host:port of metrics, health and pages; "" = none
	Debug     string     `yaml:"debug"`      // host:port of pprof; "" = none
	LogLevel  string     `yaml:"log-level"`  // debug, info, warn or error

	TLS        TLS               `yaml:"tls"`     // gateway: towards Postgres clients
	Backend    TLS               `yaml:"backend"` // gateway: towards Postgres instances
	RPC        RPC               `yaml:"rpc"`     // between agents, admins and gateways
	Etcd       Etcd              `yaml:"etcd"`
	Auth       Auth              `yaml:"auth"`
	Agent      Agent             `yaml:"agent"`
	Backup     Backup            `yaml:"backup"`     // agent: where; admin: when
	Parameters map[string]string `yaml:"parameters"` // start values; those set by SQL come before them
}

// TLS names files in PEM form.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"` // to check the other side; as a server: clients may give certificates
}

// RPC is the HTTP API of agents and admins.
type RPC struct {
	Listen    string `yaml:"listen"`     // host:port
	URL       string `yaml:"url"`        // as others reach it; default https://<listen>, or http without tls
	TLS       TLS    `yaml:"tls"`        // mutual
	TokenFile string `yaml:"token-file"` // shared secret; without tls only, on loopback
}

// Etcd says where the catalog is.
type Etcd struct {
	Endpoints []string `yaml:"endpoints"`
	TLS       TLS      `yaml:"tls"`
}

// Agent is what an agent must know about its Postgres.
type Agent struct {
	Data         string `yaml:"data"`          // directory that holds PGDATA and the agent's own files
	PostgresBin  string `yaml:"postgres-bin"`  // directory of the server binaries; "" = find them
	PostgresUser string `yaml:"postgres-user"` // operating system user when the agent runs as root
	Shard        string `yaml:"shard"`         // uid
	Role         string `yaml:"role"`          // replica or rdonly; an empty shard's first replica becomes the primary
	Host         string `yaml:"host"`          // as others reach the instance
	Port         int    `yaml:"port"`
	// TLS is the certificate that Postgres shows; with ca all who come by the network must use TLS, other instances included.
	TLS TLS `yaml:"tls"`
}

// Backup says where the backups and the WAL of all shards are kept, and when backups are taken. Agents and admins of a
// cluster have the same.
type Backup struct {
	Directory string `yaml:"directory"` // the same on every machine, a network file system for example; or S3
	S3        S3     `yaml:"s3"`
	// PgBackRest leaves both to that program.
	PgBackRest PgBackRest `yaml:"pgbackrest"`
	Interval   string     `yaml:"interval"`  // from one scheduled backup to the next; default 12h; 0 = none
	Retention  string     `yaml:"retention"` // how long they are kept; default 2 days
	MaxRate    int        `yaml:"max-rate"`  // megabytes per second that a backup reads from a primary; 0 = no bound
	// Incremental is how many incremental backups may follow a full one (PostgreSQL 17 and newer); default 0.
	Incremental int `yaml:"incremental"`
}

// PgBackRest says how that program keeps backups and WAL.
type PgBackRest struct {
	Program string            `yaml:"program"` // "" = pgbackrest of PATH
	Options map[string]string `yaml:"options"` // of its section global: repo1-path, repo1-type, repo1-s3-bucket ...
}

// Used tells whether it is.
func (b PgBackRest) Used() bool { return b.Program != "" || len(b.Options) > 0 }

// S3 is a bucket of an S3-compatible object store.
type S3 struct {
	Endpoint      string `yaml:"endpoint"` // host:port, or a URL; "" = Amazon's
	Bucket        string `yaml:"bucket"`
	Prefix        string `yaml:"prefix"` // of all keys
	Region        string `yaml:"region"`
	AccessKey     string `yaml:"access-key"`      // "" = of the environment (AWS_ACCESS_KEY_ID), or of the machine's role
	SecretKeyFile string `yaml:"secret-key-file"` // file with the secret of access-key
	CA            string `yaml:"ca"`              // to check the server's certificate; "" = the system's
}

// Default times of backups.
const (
	defaultBackupInterval  = "12h"
	defaultBackupRetention = "2 days"
)

// Times gives the parsed Interval and Retention.
func (b Backup) Times() (interval, retention time.Duration, err error) {
	for _, f := range []struct {
		name, text, def string
		into            *time.Duration
	}{{"interval", b.Interval, defaultBackupInterval, &interval}, {"retention", b.Retention, defaultBackupRetention, &retention}} {
		text, ok := f.text, false
		if text == "" {
			text = f.def
		}
		if *f.into, ok = ParseInterval(text); !ok {
			return 0, 0, pgerr.New(pgerr.InvalidParameterValue, "backup.%s: %q is no interval", f.name, text).WithHint("%s", intervalHintFor(text))
		}
	}
	return interval, retention, nil
}

// LoadConfig reads and checks neki.yaml. Its errors name the line and the key.
func LoadConfig(r io.Reader) (Config, error) {
	c := Config{Cluster: "main", LogLevel: "info"}
	var root yaml.Node
	if err := yaml.NewDecoder(r).Decode(&root); err != nil {
		if errors.Is(err, io.EOF) { // an empty file
			return c, nil
		}
		return Config{}, fmt.Errorf("neki.yaml: %s", yamlMessage(err))
	}
	problems := checkKeys(&root, configKeys, "")
	if err := root.Decode(&c); err != nil {
		problems = append(problems, yamlProblems(err)...)
	}
	if len(problems) == 0 {
		problems = c.check(&root)
	}
	if len(problems) > 0 {
		return Config{}, fmt.Errorf("neki.yaml: %s", strings.Join(problems, "; "))
	}
	return c, nil
}

// Values gives the parameters of the file over the defaults.
func (c Config) Values() (Parameters, error) {
	pairs := make([]Pair, 0, len(c.Parameters))
	for name, value := range c.Parameters {
		pairs = append(pairs, Pair{name, value})
	}
	return DefaultParameters().SetAll(pairs)
}

// check looks at the values; root tells their lines.
func (c Config) check(root *yaml.Node) []string {
	k := checker{root: root}
	k.name("cluster", c.Cluster)
	if c.ID != "" {
		k.name("id", c.ID)
	}
	k.listeners(c.Listen)
	k.address("http", c.HTTP)
	k.address("debug", c.Debug)
	k.address("rpc.listen", c.RPC.Listen)
	k.oneOf("log-level", c.LogLevel, "debug", "info", "warn", "error")
	k.oneOf("agent.role", c.Agent.Role, "", "replica", "rdonly")
	for path, tls := range map[string]TLS{"tls": c.TLS, "backend": c.Backend, "rpc.tls": c.RPC.TLS, "etcd.tls": c.Etcd.TLS} {
		if (tls.Cert == "") != (tls.Key == "") {
			k.fail(path, "cert and key belong together")
		}
	}
	if c.RPC.TokenFile != "" && c.RPC.TLS != (TLS{}) {
		k.fail("rpc.token-file", "not used with rpc.tls")
	}
	if c.Agent.Port < 0 || c.Agent.Port > 65535 {
		k.fail("agent.port", "not a port")
	}
	k.backup(c.Backup)
	k.auth(&c)
	k.parameters(c)
	return k.problems
}

func (k *checker) backup(b Backup) {
	if b.Directory != "" && b.S3 != (S3{}) {
		k.fail("backup.directory", "not used with backup.s3")
	}
	if b.S3 != (S3{}) && b.S3.Bucket == "" {
		k.fail("backup.s3", "bucket is missing")
	}
	if (b.S3.AccessKey == "") != (b.S3.SecretKeyFile == "") {
		k.fail("backup.s3", "access-key and secret-key-file belong together")
	}
	if b.MaxRate < 0 {
		k.fail("backup.max-rate", "less than 0")
	}
	if b.PgBackRest.Used() && (b.Directory != "" || b.S3 != (S3{}) || b.MaxRate != 0) {
		k.fail("backup.pgbackrest", "not used with backup.directory, backup.s3 and backup.max-rate")
	}
	if b.PgBackRest.Used() && b.PgBackRest.Options["repo1-path"] == "" {
		k.fail("backup.pgbackrest.options", "repo1-path is missing")
	}
	if b.Incremental < 0 {
		k.fail("backup.incremental", "less than 0")
	}
	if _, retention, err := b.Times(); err != nil {
		k.fail("backup", "%s", withHint(err))
	} else if retention == 0 {
		k.fail("backup.retention", "backups must be kept for some time")
	}
}

type checker struct {
	root     *yaml.Node
	problems []string
}

func (k *checker) fail(path, format string, args ...any) {
	at := ""
	if n := find(k.root, path); n != nil {
		at = fmt.Sprintf("line %d: ", n.Line)
	}
	k.problems = append(k.problems, at+path+": "+fmt.Sprintf(format, args...))
}

func (k *checker) name(path, value string) {
	var n Neki
	if value == "" || !parseShard(&n, value) {
		k.fail(path, "%q is not a name of letters, digits, underscores, hyphens and dots", value)
	}
}

func (k *checker) address(path, value string) {
	if value == "" {
		return
	}
	if _, port, err := net.SplitHostPort(value); err != nil || port == "" {
		k.fail(path, "%q is not host:port", value)
	}
}

func (k *checker) oneOf(path, value string, allowed ...string) {
	for _, a := range allowed {
		if value == a {
			return
		}
	}
	k.fail(path, "%q is not one of %s", value, strings.TrimPrefix(strings.Join(allowed, ", "), ", "))
}

func (k *checker) parameters(c Config) {
	bad := false
	for name, value := range c.Parameters {
		p := DefaultParameters()
		row, ok := FindParameter(name)
		err := unknownParameter(name)
		if ok {
			err = row.Parse(&p, value)
		}
		if err != nil {
			bad = true
			k.fail("parameters."+name, "%s", withHint(err))
		}
	}
	if _, err := c.Values(); err != nil && !bad {
		k.fail("parameters", "%s", withHint(err))
	}
}
