package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func framed(size int, content []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(size)), content...)
}

func TestReadFrame(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 300<<10/16)
	for _, tc := range []struct {
		name string
		in   []byte
		want []byte
		err  error
	}{
		{"empty", framed(0, nil), []byte{}, nil},
		{"small", framed(3, []byte("abc")), []byte("abc"), nil},
		{"grown several times", framed(len(big), big), big, nil},
		{"clean end", nil, nil, io.EOF},
		{"end inside the size", []byte{0, 0}, nil, io.ErrUnexpectedEOF},
		{"end inside the frame", framed(5, []byte("abc")), nil, io.ErrUnexpectedEOF},
		{"end before the frame's first byte", framed(5, nil), nil, io.ErrUnexpectedEOF},
		{"negative", framed(-1, nil), nil, ErrFrameSize},
		{"above the limit", framed(1<<20+1, nil), nil, ErrFrameSize},
		{"2 GiB", framed(math.MaxInt32, nil), nil, ErrFrameSize},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// One byte per read: the result must not depend on how bytes arrive.
			for _, r := range []io.Reader{bytes.NewReader(tc.in), iotest.OneByteReader(bytes.NewReader(tc.in))} {
				got, err := ReadFrame(r, 1<<20, nil)
				if !errors.Is(err, tc.err) {
					t.Fatalf("error %v, want %v", err, tc.err)
				}
				if tc.err == nil && !bytes.Equal(got, tc.want) {
					t.Fatalf("%d bytes, want %d", len(got), len(tc.want))
				}
			}
		})
	}
}

// A peer that states a large frame and sends little must not get the memory.
func TestFrameMemoryFollowsTheBytes(t *testing.T) {
	limit := func(int16) int { return 100 << 20 }
	var asked []int
	grow := func(b []byte, n, _ int) ([]byte, error) {
		asked = append(asked, n)
		return append(make([]byte, 0, n), b...), nil
	}
	sent := 70 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadRequestFrame(bytes.NewReader(framed(100<<20, make([]byte, sent))), limit, nil, grow)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	for _, n := range asked {
		if n > 4*sent {
			t.Fatalf("asked for %d bytes after at most %d had arrived", n, sent)
		}
	}
	if total := after.TotalAlloc - before.TotalAlloc; total > 64<<10+8*uint64(sent) {
		t.Fatalf("allocated %d bytes for %d that arrived", total, sent)
	}
}

// Whoever grows frames is asked before each step, so that deadlines can follow what
// arrives, also where it gave all the room at once.
func TestFrameAsksBeforeEachStep(t *testing.T) {
	const size = 5 << 20
	var steps []int
	grow := func(b []byte, n, stated int) ([]byte, error) {
		if n > 2 && stated != size {
			t.Errorf("the frame has %d bytes, not %d", stated, size)
		}
		steps = append(steps, n)
		return append(make([]byte, 0, size), b...), nil
	}
	if _, err := ReadRequestFrame(bytes.NewReader(framed(size, make([]byte, size))), func(int16) int { return size }, nil, grow); err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 64 << 10, 256 << 10, 1 << 20, 4 << 20, size}; !slices.Equal(steps, want) {
		t.Errorf("asked for %v, want %v", steps, want)
	}
}

func TestReadRequestFrameLimitsByKey(t *testing.T) {
	limit := func(key int16) int {
		if key == 0 {
			return 1000
		}
		return 100
	}
	body := make([]byte, 500)
	if _, err := ReadRequestFrame(bytes.NewReader(framed(500, body)), limit, nil, nil); err != nil {
		t.Fatalf("produce of 500 bytes: %v", err)
	}
	body[1] = 3
	_, err := ReadRequestFrame(bytes.NewReader(framed(500, body)), limit, nil, nil)
	if !errors.Is(err, ErrFrameSize) || !strings.Contains(err.Error(), "key 3") {
		t.Fatalf("metadata of 500 bytes: %v", err)
	}
	if _, err := ReadRequestFrame(bytes.NewReader(framed(7, body)), limit, nil, nil); !errors.Is(err, ErrFrameSize) {
		t.Fatalf("a frame without room for a header: %v", err)
	}
}

// The header of every key and version that kmsg knows must come back as it was
// sent, and the body with it.
func TestRequestHeaderRoundTrip(t *testing.T) {
	for key := int16(0); key <= lastMirrorKey; key++ {
		req := NewRequest(key)
		if req == nil {
			continue
		}
		for v := range req.MaxVersion() + 1 {
			req.SetVersion(v)
			frame := AppendRequest(nil, 42, "client", req)[4:]
			h, body, err := ParseRequestHeader(frame)
			if err != nil {
				t.Fatalf("key %d version %d: %v", key, v, err)
			}
			if h.Key != key || h.Version != v || h.CorrelationID != 42 || h.ClientID == nil || *h.ClientID != "client" {
				t.Fatalf("key %d version %d: %+v", key, v, h)
			}
			if !bytes.Equal(body, req.AppendTo(nil)) {
				t.Fatalf("key %d version %d: body differs", key, v)
			}
			resp := req.ResponseKind()
			resp.SetVersion(v)
			corr, body, err := ParseResponseHeader(AppendResponse(nil, 42, resp, req.IsFlexible())[4:], key, IsFlexible(key, v))
			if err != nil || corr != 42 || !bytes.Equal(body, resp.AppendTo(nil)) {
				t.Fatalf("key %d version %d: response %d %v", key, v, corr, err)
			}
		}
	}
}

// Mirror keys are ours even where kmsg has another message with the number.
func TestNewRequestPrefersOurs(t *testing.T) {
	if _, ok := NewRequest(94).(*CreateClusterMirrorRequest); !ok {
		t.Fatalf("key 94 is %T", NewRequest(94))
	}
	for _, key := range []int16{-1, 100, 105, 108, math.MaxInt16} {
		if req := NewRequest(key); req != nil {
			t.Fatalf("key %d is %T", key, req)
		}
	}
}

// An ApiVersions request newer than ours has a header that we can still read,
// and its answer a header that any client can (KIP-511).
func TestApiVersionsHeader(t *testing.T) {
	frame := []byte{0, 18, 0, 99, 0, 0, 0, 7, 0, 1, 'c', 0, 1, 2, 3}
	h, _, err := ParseRequestHeader(frame)
	if err != nil || h.Version != 99 || h.CorrelationID != 7 {
		t.Fatalf("%+v %v", h, err)
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.SetVersion(4)
	if got := AppendResponse(nil, 7, resp, true); !bytes.Equal(got[8:10], []byte{0, 0}) || len(got) != 8+len(resp.AppendTo(nil)) {
		t.Fatalf("header v0 expected: %x", got)
	}
}

// FuzzRequest: whatever a client sends is an error or a request that encodes
// and decodes to the same bytes; nothing panics.
func FuzzRequest(f *testing.F) {
	for key := int16(0); key <= lastMirrorKey; key++ {
		if req := NewRequest(key); req != nil {
			req.SetVersion(req.MaxVersion())
			f.Add(AppendRequest(nil, 1, "c", req)[4:])
			req.SetVersion(0)
			f.Add(AppendRequest(nil, 1, "c", req)[4:])
		}
	}
	f.Add([]byte{0, 18, 0, 3, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) > 64<<10 {
			return
		}
		h, body, err := ParseRequestHeader(frame)
		if err != nil {
			return
		}
		req := NewRequest(h.Key)
		if req == nil || h.Version > req.MaxVersion() {
			return
		}
		req.SetVersion(h.Version)
		if req.ReadFrom(body) != nil {
			return
		}
		once := req.AppendTo(nil)
		again := NewRequest(h.Key)
		again.SetVersion(h.Version)
		if err := again.ReadFrom(once); err != nil {
			t.Fatalf("key %d version %d: own encoding does not decode: %v", h.Key, h.Version, err)
		}
		if twice := again.AppendTo(nil); !bytes.Equal(once, twice) {
			t.Fatalf("key %d version %d:\n%x\n%x", h.Key, h.Version, once, twice)
		}
	})
}
