package pooler

import (
	"testing"

	"neki/exec"
	"neki/internal/datum"
	"neki/internal/pgerr"
	"neki/pooler/plan"
)

// TestCheckDescription: rows with other columns than planned are refused, not read as what they are not.
func TestCheckDescription(t *testing.T) {
	field := func(name string, oid byte) string {
		return name + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + string(oid) + "\x00\x04\xff\xff\xff\xff\x00\x00"
	}
	leg := &plan.Leg{Columns: []exec.Column{{Name: "a", Type: datum.Of(datum.Int4OID)}, {Name: "b", Type: datum.Of(datum.TextOID)}}}
	for body, want := range map[string]string{
		"\x00\x02" + field("a", 23) + field("b", 25):                  "",
		"\x00\x02" + field("x", 23) + field("y", 25):                  "",
		"\x00\x02" + field("a", 20) + field("b", 25):                  pgerr.FeatureNotSupported,
		"\x00\x01" + field("a", 23):                                   pgerr.FeatureNotSupported,
		"\x00\x03" + field("a", 23) + field("b", 25) + field("c", 23): pgerr.FeatureNotSupported,
		"\x00\x02" + field("a", 23):                                   pgerr.FeatureNotSupported,
		"":                                                            pgerr.FeatureNotSupported,
	} {
		if err := checkDescription(leg, []byte(body)); pgerr.Code(err) != want {
			t.Errorf("%q: %v", body, err)
		}
	}
	if err := checkDescription(&plan.Leg{}, []byte("\x00\x01"+field("a", 99))); err != nil {
		t.Error(err)
	}
}
