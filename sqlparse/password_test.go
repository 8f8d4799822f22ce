package sqlparse

import "testing"

func TestPasswordOf(t *testing.T) {
	for _, tc := range []struct{ text, literal, password string }{
		{"CREATE ROLE a LOGIN PASSWORD 'x''y' CREATEDB", "'x''y'", "x'y"},
		{"alter user password encrypted password E'a\\'b' valid until 'infinity'", "E'a\\'b'", "a'b"},
		{"CREATE USER \"password\" /* PASSWORD 'no' */ PASSWORD $$p$$", "$$p$$", "p"},
		{"ALTER ROLE a PASSWORD NULL", "", ""},
		{"ALTER ROLE a SET work_mem = '1MB'", "", ""},
		{"CREATE ROLE password", "", ""},
	} {
		start, password, end, err := PasswordOf(tc.text)
		literal := ""
		if start >= 0 {
			literal = tc.text[start:end]
		}
		if err != nil || literal != tc.literal || password != tc.password {
			t.Errorf("%s: %q %q, %v", tc.text, literal, password, err)
		}
	}
}
