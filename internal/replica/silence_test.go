package replica

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// The next connection waits longer, to a bound, until there is an answer. Other failures
// say nothing about a leader's time.
func TestPatience(t *testing.T) {
	p := newPatience(8*time.Second, 30*time.Second)
	for i, c := range []struct {
		err    error
		silent bool
		next   time.Duration
	}{
		{nil, false, 8 * time.Second},
		{os.ErrDeadlineExceeded, true, 16 * time.Second},
		{io.EOF, false, 16 * time.Second},
		{os.ErrDeadlineExceeded, true, 30 * time.Second},
		{os.ErrDeadlineExceeded, true, 30 * time.Second},
		{nil, false, 8 * time.Second},
	} {
		if silent := p.after(c.err); silent != c.silent || p.now != c.next {
			t.Errorf("step %d, %v: silent %v, next %v", i, c.err, silent, p.now)
		}
	}
}

// hush is a leader on a link that may go silent: it answers ApiVersions, and fetches as
// the next of says tells. "half" is an answer that breaks off in the middle.
func hush(t *testing.T, says ...string) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			for {
				frame, err := wire.ReadFrame(c, 1<<20, nil)
				if err != nil {
					break
				}
				h, _, err := wire.ParseRequestHeader(frame)
				if err != nil {
					break
				}
				req := wire.NewRequest(h.Key)
				resp := req.ResponseKind()
				resp.SetVersion(h.Version)
				say := "answer"
				switch r := resp.(type) {
				case *kmsg.ApiVersionsResponse:
					r.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: 18, MaxVersion: 4}, {ApiKey: 1, MinVersion: 4, MaxVersion: 17}}
				case *kmsg.FetchResponse:
					if len(says) > 0 {
						say, says = says[0], says[1:]
					}
				}
				flexible := resp.IsFlexible() && h.Key != 18
				out := wire.AppendResponse(nil, h.CorrelationID, resp, flexible)
				switch say {
				case "silence":
					out = nil
				case "half":
					out = out[:len(out)-2]
				}
				if _, err := c.Write(out); err != nil {
					break
				}
			}
		}
	}()
	return l
}

type deaf struct{}

func (deaf) Partition(*sdk.PartitionHeader, io.Reader) error { return nil }

// TestSilentLeader: a link that goes silent, before an answer or in the middle of one,
// ends within the bound and not after the time that an answer may take, half a minute. A
// leader that only waits for records, as long as it was let, is not silent.
func TestSilentLeader(t *testing.T) {
	const wait, silence = 200 * time.Millisecond, 300 * time.Millisecond
	for _, say := range []string{"silence", "half"} {
		t.Run(say, func(t *testing.T) {
			t.Parallel()
			l := hush(t, "answer", say, "answer")
			var log bytes.Buffer
			m := newManager(Options{MaxWait: wait, Silence: silence, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Dial: func(ctx context.Context, _ int32) (*wire.Client, error) {
					return new(wire.Dialer).Dial(ctx, l.Addr().String())
				}})
			defer m.cancel()
			f := &fetcher{key: fetcherKey{leader: 3}, patience: newPatience(m.o.Silence, m.o.Timeout)}
			open := func() sdk.Session {
				t.Helper()
				s, err := m.open(t.Context(), 3)
				if err != nil {
					t.Fatal(err)
				}
				return m.heard(f, s)
			}
			fetch := func(s sdk.Session) error {
				return s.Fetch(t.Context(), &sdk.FetchRequest{MaxWait: wait, MinBytes: 1, MaxBytes: 1 << 20}, deaf{})
			}
			s := open()
			if err := fetch(s); err != nil {
				t.Fatal(err)
			}
			if _, ok := s.(pipeline.Interrupter); !ok {
				t.Error("its long polls cannot be interrupted")
			}
			began := time.Now()
			err := fetch(s)
			took := time.Since(began)
			s.Close()
			if !errors.Is(err, os.ErrDeadlineExceeded) || took < silence || took > 10*time.Second {
				t.Errorf("the silent one ended after %v: %v", took, err)
			}
			if !strings.Contains(log.String(), `"connection to a leader was silent and is opened anew" leader=3 silent_for=300ms next_waits=600ms`) {
				t.Errorf("log: %s", &log)
			}
			s = open()
			defer s.Close()
			if err := fetch(s); err != nil || f.patience.now != silence {
				t.Errorf("a new connection: %v, then %v", err, f.patience.now)
			}
		})
	}
}
