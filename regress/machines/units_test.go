package machines

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnits has systemd check the units. The program that they start is where the guide puts it; here another stands for it.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	units, err := filepath.Glob("../../contrib/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatal("no units:", err)
	}
	stand, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, u := range units {
		text, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "ExecStart=/usr/local/bin/neki ") {
			t.Errorf("%s starts something else", u)
		}
		to := filepath.Join(dir, strings.Replace(filepath.Base(u), "@.", "@sh1.", 1))
		if err := os.WriteFile(to, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/neki", stand)), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, to)
	}
	// It prints what it does not know and succeeds all the same.
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
