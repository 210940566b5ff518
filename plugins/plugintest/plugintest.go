// Package plugintest holds the contract tests that every plugin runs: the
// questions a broker may ask, what must be true of each answer, and how a
// process has to behave when it is late, asked by many, or told to stop.
//
//	func TestContract(t *testing.T) {
//		plugintest.Run(t, plugintest.Options{Path: plugintest.Build(t, "."), Kinds: []sdk.Kind{sdk.KindTruncation}})
//	}
//
// The process runs under the same host as in a broker. A question that the
// broker's default had to answer fails the test: the plugin was late, died, or
// its answer was refused.
package plugintest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/plugins/host"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Options say which plugin is tested, and as what.
type Options struct {
	Path  string // of the executable
	Args  []string
	Env   []string
	Kinds []sdk.Kind

	// DecisionTimeout is how long one answer may take. Default 30 s, which only
	// a policy that hangs exceeds; a broker gives 2 s.
	DecisionTimeout time.Duration

	// Echo is an address that the transport reaches and that sends back what it
	// is sent. Empty: a local TCP server.
	Echo string
	// Unreachable is an address that the transport cannot reach. Empty: a local
	// TCP port that nobody listens on.
	Unreachable string
}

// Build compiles the main package in dir and returns the executable's path.
func Build(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".") // no debugging data: half the time
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, out)
	}
	// The host refuses files that others may write, whatever the umask here.
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// Sum is the SHA-256 of a file as a configuration has it.
func Sum(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Host starts the plugin under the name "tested".
func Host(t testing.TB, o Options) *host.Host {
	t.Helper()
	// Not t.TempDir, whose path grows with the test's name: sockets need a
	// short one.
	dir, err := os.MkdirTemp("", "plugintest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if o.DecisionTimeout == 0 {
		o.DecisionTimeout = 30 * time.Second
	}
	h, err := host.Open(host.Options{
		Dir:             dir,
		Logger:          slog.New(slog.NewTextHandler(t.Output(), nil)),
		DecisionTimeout: o.DecisionTimeout,
		StartTimeout:    patience, // the machine's load is not the plugin's fault
		DialTimeout:     patience,
		Plugins:         []host.Plugin{{Name: "tested", Path: o.Path, SHA256: Sum(t, o.Path), Args: o.Args, Env: o.Env, Kinds: o.Kinds}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// Run runs the contract of each kind.
func Run(t *testing.T, o Options) {
	if len(o.Kinds) == 0 {
		t.Fatal("plugintest: Options.Kinds is empty")
	}
	if slices.Contains(o.Kinds, sdk.KindTruncation) {
		t.Run("truncation", func(t *testing.T) { runTruncation(t, o) })
	}
	if slices.Contains(o.Kinds, sdk.KindUncleanElection) {
		t.Run("unclean election", func(t *testing.T) { runUnclean(t, o) })
	}
	if slices.Contains(o.Kinds, sdk.KindTransport) {
		t.Run("transport", func(t *testing.T) { runTransport(t, o) })
	}
	t.Run("stop", func(t *testing.T) { runStop(t, o) })
}

// A plugin that is told to stop ends by itself and with 0: it is not killed.
func runStop(t *testing.T, o Options) {
	h := Host(t, o)
	if st := h.Status()[0]; st.PID == 0 || st.Starts != 1 {
		t.Fatalf("not running: %+v", st)
	}
	h.Close()
	if st := h.Status()[0]; st.PID != 0 || st.LastEnd != "exit status 0" {
		t.Errorf("after Close: %+v, want an exit status of 0", st)
	}
}

// Questions about logs of every shape. In all of them the built-in rule would
// cut to Target.
func truncationQuestions() map[string]*sdk.TruncationQuestion {
	key := sdk.PartitionKey{Topic: "orders", TopicID: [16]byte{1, 2, 3}, Partition: 7}
	long := make([]sdk.EpochStart, 20_000)
	for i := range long {
		long[i] = sdk.EpochStart{Epoch: int32(i), Start: int64(i) * 1000}
	}
	return map[string]*sdk.TruncationQuestion{
		"empty log": {Mirror: "m", Key: key, Reason: sdk.TruncateAlign, LastMirroredEpoch: -1, LastMirroredOffset: -1},
		"nothing to cut": {Mirror: "m", Key: key, Reason: sdk.TruncateLastMirrored, HighWatermark: 10, LogEnd: 10,
			Epochs: []sdk.EpochStart{{Epoch: 0, Start: 0}}, LastMirroredEpoch: 0, LastMirroredOffset: 10, Target: 10},
		"failback": {Mirror: "m", Key: key, Reason: sdk.TruncateLastMirrored, HighWatermark: 10, LogEnd: 10,
			Epochs: []sdk.EpochStart{{Epoch: 4, Start: 0}}, LastMirroredEpoch: 4, LastMirroredOffset: 8, Target: 8},
		"source loss": {Mirror: "m", Key: key, Reason: sdk.TruncateSourceLoss, LogStart: 100, HighWatermark: 900, LogEnd: 1000,
			Epochs: long, LastMirroredEpoch: -1, LastMirroredOffset: -1, UncleanSupport: true, Target: 500},
		"retention": {Mirror: "m", Key: key, Reason: sdk.TruncateRetention, LogStart: 50, HighWatermark: 60, LogEnd: 60,
			LastMirroredEpoch: -1, LastMirroredOffset: -1, Target: 50},
		"other topic": {Mirror: "a.very-long_mirror.name", Key: sdk.PartitionKey{Topic: "__consumer_offsets", Partition: 49},
			Reason: sdk.TruncateAlign, HighWatermark: 1 << 40, LogEnd: 1<<40 + 5, LastMirroredEpoch: -1, LastMirroredOffset: -1, Target: 1 << 40},
	}
}

// fallback is the default that must not be needed.
type fallback struct{ t testing.TB }

func (fallback) Name() string { return "contract" }

func (f fallback) DecideTruncation(_ context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	f.t.Errorf("the plugin gave no valid answer in time to %+v", q.Key)
	return sdk.TruncationDecision{Action: sdk.TruncateHold}, nil
}

func (f fallback) DecideUncleanElection(_ context.Context, q *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	f.t.Errorf("the plugin gave no valid answer in time to %+v", *q)
	return sdk.UncleanElectionDecision{Action: sdk.UncleanFail}, nil
}

func runTruncation(t *testing.T, o Options) {
	h := Host(t, o)
	policy, err := h.TruncationPolicy("tested", fallback{t})
	if err != nil {
		t.Fatal(err)
	}
	questions := truncationQuestions()
	for name, q := range questions {
		t.Run(name, func(t *testing.T) {
			d, err := policy.DecideTruncation(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if q.Target == q.LogEnd && (d.Action != sdk.TruncateCut || d.Target != q.Target) {
				t.Errorf("nothing would be lost, but the answer is %+v: the partition would never be mirrored", d)
			}
			if d.Action != sdk.TruncateCut && d.Text == "" {
				t.Errorf("%+v does not tell the operator why", d)
			}
		})
	}
	t.Run("gone asker", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := policy.DecideTruncation(ctx, questions["failback"]); err != context.Canceled {
			t.Errorf("error %v, want the context's", err)
		}
	})
	t.Run("many askers", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			for _, q := range questions {
				wg.Go(func() {
					if _, err := policy.DecideTruncation(t.Context(), q); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
	})
	checkAlive(t, h)
}

func runUnclean(t *testing.T, o Options) {
	h := Host(t, o)
	policy, err := h.UncleanElectionPolicy("tested", fallback{t})
	if err != nil {
		t.Fatal(err)
	}
	key := sdk.PartitionKey{Topic: "orders", Partition: 1}
	for name, q := range map[string]*sdk.UncleanElectionQuestion{
		"source": {Kind: sdk.UncleanSource, Mirror: "m", Key: key, LogEnd: 10, HighWatermark: 10,
			Diverging: sdk.EpochEnd{Epoch: 3, End: 8}},
		"source, supported": {Kind: sdk.UncleanSource, Mirror: "m", Key: key, LogEnd: 10, HighWatermark: 10,
			Diverging: sdk.EpochEnd{Epoch: 3, End: 8}, UncleanSupport: true},
		"destination":             {Kind: sdk.UncleanDestination, Key: key, Diverging: sdk.Undefined, Live: []int32{2, 3}, UncleanAllowed: true},
		"destination, none lives": {Kind: sdk.UncleanDestination, Key: key, Diverging: sdk.Undefined},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := policy.DecideUncleanElection(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if d.Action == sdk.UncleanFail && d.Text == "" {
				t.Errorf("%+v does not tell the operator why", d)
			}
		})
	}
	checkAlive(t, h)
}

func checkAlive(t *testing.T, h *host.Host) {
	t.Helper()
	if st := h.Status()[0]; st.Starts != 1 || st.PID == 0 {
		t.Errorf("the process did not live through the test: %+v", st)
	}
}
