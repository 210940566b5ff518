package segment

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// piecesFile notes the writes that it gets, and refuses one.
type piecesFile struct {
	data   []byte
	calls  []string
	broken int // the number of the call that fails; 0: none
}

var errPiece = errors.New("no such piece")

func (f *piecesFile) WriteAt(b []byte, at int64) (int, error) {
	f.calls = append(f.calls, fmt.Sprintf("%d+%d", at, len(b)))
	if len(f.calls) == f.broken {
		return 0, errPiece
	}
	f.data = append(f.data[:at], b...)
	return len(b), nil
}

// What is longer than a piece is written in pieces that end where those of a file from
// its start on do; else it is one write.
func TestWriteAtPieces(t *testing.T) {
	const k = writePiece
	for _, c := range []struct {
		at, n int
		calls string
	}{
		{0, 0, "[]"},
		{0, 1, "[0+1]"},
		{5, 100, "[5+100]"},
		{0, k, fmt.Sprintf("[0+%d]", k)},
		{k - 1, 2, fmt.Sprintf("[%d+2]", k-1)},
		{100, 2 * k, fmt.Sprintf("[100+%d %d+%d %d+100]", k-100, k, k, 2*k)},
		{100, 3*k - 300, fmt.Sprintf("[100+%d %d+%d %d+%d]", k-100, k, k, 2*k, k-200)},
	} {
		b := bytes.Repeat([]byte("0123456789"), (c.n+9)/10)[:c.n]
		f := &piecesFile{data: make([]byte, c.at)}
		if err := writeAt(f, b, int64(c.at), k); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(f.calls); got != c.calls {
			t.Errorf("%d bytes at %d: %s, want %s", c.n, c.at, got, c.calls)
		}
		if !bytes.Equal(f.data[c.at:], b) {
			t.Errorf("%d bytes at %d: other bytes were written", c.n, c.at)
		}
	}
	f := &piecesFile{broken: 2}
	if err := writeAt(f, make([]byte, 3*k), 0, k); !errors.Is(err, errPiece) || len(f.calls) != 2 {
		t.Error(err, f.calls)
	}
}
