package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestDrainCountsRowsHoweverTheyArrive(t *testing.T) {
	var stream []byte
	const rows = 300
	stream = mustEncode(t, stream, &pgproto3.RowDescription{})
	for i := range rows {
		stream = mustEncode(t, stream, &pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte{'Z'}, i*7)}})
	}
	stream = mustEncode(t, stream, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 300")})
	stream = mustEncode(t, stream, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for name, r := range map[string]io.Reader{
		"whole":        bytes.NewReader(stream),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":       iotest.HalfReader(bytes.NewReader(stream)),
	} {
		if n, err := drain(r); err != nil || n != rows {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
	}
	if _, err := drain(bytes.NewReader(stream[:len(stream)-3])); err == nil {
		t.Error("a cut stream is no error")
	}
	failed := mustEncode(t, nil, &pgproto3.ErrorResponse{Message: "no"})
	if _, err := drain(bytes.NewReader(failed)); err == nil {
		t.Error("an ErrorResponse is no error")
	}
}

func mustEncode(t *testing.T, dst []byte, m pgproto3.BackendMessage) []byte {
	t.Helper()
	dst, err := m.Encode(dst)
	if err != nil {
		t.Fatal(err)
	}
	return dst
}

func TestCPUOfThisProcess(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for end := time.Now().Add(time.Minute); after-before < 50*time.Millisecond && time.Now().Before(end); {
		for range 1000 {
			_ = bytes.Repeat([]byte{1}, 1<<16)
		}
		if after, err = cpuOf(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	if after-before < 50*time.Millisecond {
		t.Errorf("a minute of work is %v of CPU", after-before)
	}
	if m, err := memoryOf(os.Getpid()); err != nil || m < 1<<20 {
		t.Errorf("memory %d, %v", m, err)
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}} {
		if got := median(test.values); got != test.want {
			t.Errorf("median(%v) = %v", test.values, got)
		}
	}
}
