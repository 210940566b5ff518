package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/plugins/serve"
)

// The test's own executable is the plugin: when the handshake is in its
// environment it serves, in the mode that its first argument names. With
// "broker" as first argument it is a broker that waits to be killed.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(proto.Handshake.MagicCookieKey) != "":
		servePlugin(os.Args[1])
	case len(os.Args) > 1 && os.Args[1] == "broker":
		beBroker(os.Args[2], os.Args[3])
	default:
		os.Exit(m.Run())
	}
}

func servePlugin(mode string) {
	switch mode {
	case "crash":
		panic("no configuration")
	case "printer":
		fmt.Println("hello")
	}
	p := &testPolicy{mode: mode}
	served := serve.Plugin{Name: "test", Version: mode, Truncation: p, UncleanElection: p, Dial: p.dial}
	if mode == "policies" {
		served.Dial = nil
	}
	serve.Run(served)
}

// testPolicy is a policy that behaves as its mode says.
type testPolicy struct{ mode string }

func (p *testPolicy) Name() string { return p.mode }

func (p *testPolicy) DecideTruncation(ctx context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	switch p.mode {
	case "echo": // what arrived
		text := fmt.Sprintf("%+v", *q)
		return sdk.TruncationDecision{Action: sdk.TruncateFail, Target: q.Target, Retryable: true, Text: text}, nil
	case "late":
		<-ctx.Done()
		return sdk.TruncationDecision{}, ctx.Err()
	case "error":
		return sdk.TruncationDecision{}, fmt.Errorf("cannot\ndecide")
	case "above":
		return sdk.TruncationDecision{Action: sdk.TruncateCut, Target: q.Target + 1}, nil
	case "negative":
		return sdk.TruncationDecision{Action: sdk.TruncateCut, Target: -1}, nil
	case "unset":
		return sdk.TruncationDecision{Action: -1}, nil
	case "panic":
		panic("in a decision")
	case "inherit":
		in, _ := os.Readlink("/proc/self/fd/0")
		return sdk.TruncationDecision{Action: sdk.TruncateHold, Text: fmt.Sprintf("%q %s", os.Environ(), in)}, nil
	}
	return sdk.TruncationDecision{Action: sdk.TruncateHold, Text: "held"}, nil
}

func (p *testPolicy) DecideUncleanElection(_ context.Context, q *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	switch p.mode {
	case "echo":
		return sdk.UncleanElectionDecision{Action: sdk.UncleanFail, Retryable: true, Text: fmt.Sprintf("%+v", *q)}, nil
	case "above":
		return sdk.UncleanElectionDecision{Action: sdk.UncleanElect, Leader: 99}, nil
	case "negative":
		return sdk.UncleanElectionDecision{Action: sdk.UncleanRecover}, nil
	}
	return sdk.UncleanElectionDecision{Action: -1}, nil
}

func (p *testPolicy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// beBroker prints its plugin's process id and waits for its own end.
func beBroker(dir, plugin string) {
	h, err := Open(Options{Dir: dir, Plugins: []Plugin{testPlugin(plugin, "hold")}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(h.Status()[0].PID)
	io.Copy(io.Discard, os.Stdin)
}

func testPlugin(path, mode string) Plugin {
	b, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return Plugin{Name: "p", Path: path, SHA256: hex.EncodeToString(sum[:]), Args: []string{mode}}
}

// executable is a copy of the test that it may spoil.
func executable(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// events is a log that a test can wait on.
type events struct {
	slog.Handler
	seen chan string
}

func (e *events) Handle(ctx context.Context, r slog.Record) error {
	select {
	case e.seen <- r.Message + attrs(r):
	default: // nobody waits in a test that logs so much
	}
	return e.Handler.Handle(ctx, r)
}

func (e *events) WithAttrs(a []slog.Attr) slog.Handler {
	return &events{e.Handler.WithAttrs(a), e.seen}
}

func attrs(r slog.Record) string {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	return b.String()
}

func (e *events) wait(t *testing.T, message string) string {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case got := <-e.seen:
			if strings.Contains(got, message) {
				return got
			}
		case <-limit:
			t.Fatalf("%q was never logged", message)
		}
	}
}

// start opens a host with one plugin.
func start(t *testing.T, spec Plugin, set func(*Options)) (*Host, *events) {
	t.Helper()
	e := &events{slog.NewTextHandler(t.Output(), nil), make(chan string, 1000)}
	o := Options{Dir: shortDir(t), Logger: slog.New(e), Plugins: []Plugin{spec}, BackoffInitial: time.Millisecond,
		StartTimeout: 20 * time.Second, DecisionTimeout: 20 * time.Second} // on a laden machine
	if set != nil {
		set(&o)
	}
	h, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h, e
}

// builtin is the default decision of these tests: cut.
type builtin struct{ asked int }

func (b *builtin) Name() string { return "builtin" }

func (b *builtin) DecideTruncation(_ context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	b.asked++
	return sdk.TruncationDecision{Action: sdk.TruncateCut, Target: q.Target}, nil
}

func (b *builtin) DecideUncleanElection(context.Context, *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	b.asked++
	return sdk.UncleanElectionDecision{Action: sdk.UncleanFail, Text: "builtin"}, nil
}

func truncationOf(t *testing.T, h *Host) (sdk.TruncationPolicy, *builtin) {
	t.Helper()
	b := &builtin{}
	p, err := h.TruncationPolicy("p", b)
	if err != nil {
		t.Fatal(err)
	}
	return p, b
}

var question = &sdk.TruncationQuestion{
	Mirror: "m", Key: sdk.PartitionKey{Topic: "orders", TopicID: [16]byte{9, 8, 7}, Partition: 3}, Reason: sdk.TruncateRetention,
	LogStart: 1, HighWatermark: 2, LogEnd: 30, Epochs: []sdk.EpochStart{{Epoch: 4, Start: 5}, {Epoch: 6, Start: 7}},
	LastMirroredEpoch: -1, LastMirroredOffset: -1, UncleanSupport: true, Target: 20,
}
