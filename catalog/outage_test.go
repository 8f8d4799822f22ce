package catalog

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestOutage(t *testing.T) {
	var b bytes.Buffer
	o := Outage{Log: slog.New(slog.NewTextHandler(&b, nil)), What: "registration"}
	o.Worked()
	for range 2 {
		for range 5 {
			o.Failed(errors.New("away"))
		}
		o.Worked()
		o.Worked()
	}
	text := b.String()
	if n := strings.Count(text, "registration fails"); n != 2 {
		t.Errorf("%d warnings in\n%s", n, text)
	}
	if n := strings.Count(text, "works again"); n != 2 {
		t.Errorf("%d ends in\n%s", n, text)
	}
}
