package main

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// composeFile is what contrib/compose/compose.yaml may hold: keys of the compose specification, those that are used. Another one is
// an error, as with `docker compose config`. No container is started.
type composeFile struct {
	Name     string
	Common   any `yaml:"x-neki"`
	Services map[string]composeService
	Volumes  map[string]any
	Secrets  map[string]struct{ File string }
}

type composeService struct {
	Image, Hostname, Restart string
	Build                    struct{ Context, Dockerfile string }
	Command                  []string
	Environment              map[string]string
	Volumes, Secrets, Ports  []string
	StopGracePeriod          string                                `yaml:"stop_grace_period"`
	DependsOn                map[string]struct{ Condition string } `yaml:"depends_on"`
}

// checkService says what compose would refuse of a service, host ports that are taken already among it.
func checkService(dir string, file *composeFile, s composeService, taken map[string]bool) (problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if _, err := os.Stat(filepath.Join(dir, s.Build.Context, s.Build.Dockerfile)); s.Image == "" || s.Build.Dockerfile == "" || err != nil {
		say("image %q is built by %q: %v", s.Image, s.Build.Dockerfile, err)
	}
	for on, how := range s.DependsOn {
		if _, ok := file.Services[on]; !ok || !slices.Contains([]string{"service_started", "service_healthy", "service_completed_successfully"}, how.Condition) {
			say("it depends on %s, %s", on, how.Condition)
		}
	}
	for _, p := range s.Ports {
		host, container, ok := strings.Cut(p, ":")
		for _, n := range []string{host, container} {
			if v, err := strconv.Atoi(n); err != nil || v < 1 || v > 65535 {
				ok = false
			}
		}
		if !ok || taken[host] {
			say("port %s", p)
		}
		taken[host] = true
	}
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		if len(parts) < 2 || len(parts) > 3 || !filepath.IsAbs(parts[1]) || len(parts) == 3 && parts[2] != "ro" {
			say("volume %s", v)
		} else if _, err := os.Stat(filepath.Join(dir, parts[0])); err != nil && strings.HasPrefix(v, "./") {
			say("volume %s: %v", v, err)
		}
	}
	if _, err := time.ParseDuration(s.StopGracePeriod); err != nil && s.StopGracePeriod != "" {
		say("stop_grace_period: %v", err)
	}
	if !slices.Contains([]string{"", "no", "always", "on-failure", "unless-stopped"}, s.Restart) {
		say("restart: %s", s.Restart)
	}
	return problems
}

// TestCompose holds the compose file to the program: commands, flags, configurations, host names, certificates.
func TestCompose(t *testing.T) {
	dir := filepath.Join("..", "..", "contrib", "compose")
	text, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file composeFile
	strict := yaml.NewDecoder(bytes.NewReader(text))
	strict.KnownFields(true)
	if err := strict.Decode(&file); err != nil {
		t.Fatal(err)
	}
	taken := map[string]bool{}
	for name, s := range file.Services {
		for _, problem := range checkService(dir, &file, s, taken) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	certified := file.Services["certificates"].Command
	for name, s := range file.Services {
		if name == "certificates" {
			checkCommand(t, name, s.Command)
			continue
		}
		if s.Hostname != name || !slices.Contains(certified, name) {
			t.Errorf("%s: its host name is %q, and its certificate is for %v", name, s.Hostname, certified)
		}
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); !strings.HasPrefix(from, "./") {
				if _, ok := file.Volumes[from]; !ok {
					t.Errorf("%s: volume %s is not declared", name, from)
				}
			}
		}
		if s.Command[0] != "neki" {
			continue
		}
		flags := checkCommand(t, name, s.Command)
		source := ""
		for _, v := range s.Volumes {
			if from, to, ok := strings.Cut(strings.TrimSuffix(v, ":ro"), ":"); ok && to == flags["config"] {
				source = from
			}
		}
		cfg, err := loadConfig(filepath.Join(dir, source))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, address := range append(slices.Clone(cfg.Etcd.Endpoints), cfg.RPC.URL, "https://"+cfg.Agent.Host) {
			u, err := url.Parse(address)
			if _, ok := file.Services[u.Hostname()]; err != nil || !ok && u.Hostname() != "" {
				t.Errorf("%s: no service has the name in %s", name, address)
			}
		}
		if secret := flags["superuser-password-file"]; secret != "" {
			if _, ok := file.Secrets[filepath.Base(secret)]; !ok || !slices.Contains(s.Secrets, filepath.Base(secret)) {
				t.Errorf("%s: %s is no secret", name, secret)
			}
		}
	}
}

// TestUnitsStartWhatThereIs holds the command lines of the units to the program.
func TestUnitsStartWhatThereIs(t *testing.T) {
	units, err := filepath.Glob("../../contrib/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatal("no units:", err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if command, ok := strings.CutPrefix(line, "ExecStart=/usr/local/bin/"); ok {
				checkCommand(t, filepath.Base(unit), strings.Fields(command))
			}
		}
	}
}

// checkCommand looks up a command line's command and flags, and gives the flags' values.
func checkCommand(t *testing.T, where string, words []string) map[string]string {
	t.Helper()
	app := newApp(io.Discard, io.Discard)
	command := app.Command(words[1])
	if command == nil {
		t.Errorf("%s: no command %q", where, words[1])
		return nil
	}
	values := map[string]string{}
	for i, word := range words {
		name, ok := strings.CutPrefix(word, "--")
		if !ok {
			continue
		}
		at := slices.IndexFunc(command.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
		if at < 0 {
			t.Errorf("%s: neki %s has no flag --%s", where, words[1], name)
		} else if i+1 < len(words) {
			values[name] = words[i+1]
		}
	}
	return values
}
