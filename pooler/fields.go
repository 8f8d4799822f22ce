package pooler

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"neki/internal/pgerr"
)

// fields takes the fields off a message's body. The first that is not there is remembered in err, in Postgres's words;
// what is taken after that is empty.
type fields struct {
	rest []byte
	err  *pgerr.Error
}

var (
	errFormat    = pgerr.New(pgerr.ProtocolViolation, "invalid message format")
	errString    = pgerr.New(pgerr.ProtocolViolation, "invalid string in message")
	errNoData    = pgerr.New(pgerr.ProtocolViolation, "no data left in message")
	errTooShort  = pgerr.New(pgerr.ProtocolViolation, "insufficient data left in message")
	noFieldBytes [4]byte
)

func (f *fields) fail(err *pgerr.Error) {
	if f.err == nil {
		f.err = err
	}
	f.rest = nil
}

// text takes a string that ends with a zero.
func (f *fields) text() []byte {
	at := bytes.IndexByte(f.rest, 0)
	if at < 0 {
		f.fail(errString)
		return nil
	}
	s := f.rest[:at]
	f.rest = f.rest[at+1:]
	return s
}

// name takes the name of a statement or portal, which must be text in the client's encoding.
func (c *Session) name(f *fields) []byte {
	s := f.text()
	if f.err == nil && !utf8.Valid(s) {
		if encoding, _ := c.shownParameter("client_encoding"); encoding == "UTF8" {
			f.fail(errEncoding(s))
		}
	}
	return s
}

// errEncoding shows the first character of s that is none, as Postgres does.
func errEncoding(s []byte) *pgerr.Error {
	for {
		r, size := utf8.DecodeRune(s)
		if r == utf8.RuneError && size <= 1 {
			break
		}
		s = s[size:]
	}
	var shown []string
	for _, b := range s[:min(len(s), sizeByFirst(s[0]))] {
		shown = append(shown, fmt.Sprintf("0x%02x", b))
	}
	return pgerr.New(pgerr.CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\": %s", strings.Join(shown, " "))
}

// sizeByFirst gives the length of a character that begins with b.
func sizeByFirst(b byte) int {
	switch {
	case b&0xe0 == 0xc0:
		return 2
	case b&0xf0 == 0xe0:
		return 3
	case b&0xf8 == 0xf0:
		return 4
	}
	return 1
}

func (f *fields) byte() byte {
	if len(f.rest) == 0 {
		f.fail(errNoData)
		return 0
	}
	b := f.rest[0]
	f.rest = f.rest[1:]
	return b
}

// take takes n bytes.
func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.rest) {
		f.fail(errTooShort)
		return nil
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

// number takes an integer of at most four bytes.
func (f *fields) number(size int) []byte {
	if b := f.take(size); b != nil {
		return b
	}
	return noFieldBytes[:size]
}

func (f *fields) uint16() int  { return int(binary.BigEndian.Uint16(f.number(2))) }
func (f *fields) int32() int32 { return int32(binary.BigEndian.Uint32(f.number(4))) }

// end checks that nothing is left.
func (f *fields) end() *pgerr.Error {
	if len(f.rest) > 0 {
		f.fail(errFormat)
	}
	return f.err
}

// errMalformed is the error of a message that is wrong in another way than its text: that of the text's encoding comes first.
func (c *Session) errMalformed(text []byte, err *pgerr.Error) *pgerr.Error {
	if err == errString || utf8.Valid(text) { // the text has no end, or is one
		return err
	}
	if encoding, _ := c.shownParameter("client_encoding"); encoding != "UTF8" {
		return err
	}
	return errEncoding(text)
}

// queryText gives the text of a Query.
func queryText(body []byte) ([]byte, *pgerr.Error) {
	f := fields{rest: body}
	text := f.text()
	return text, f.end()
}
