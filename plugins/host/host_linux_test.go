package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Nothing of a question is lost on its way.
func TestQuestionArrivesWhole(t *testing.T) {
	h, _ := start(t, testPlugin(executable(t), "echo"), nil)
	policy, b := truncationOf(t, h)
	d, err := policy.DecideTruncation(t.Context(), question)
	want := sdk.TruncationDecision{Action: sdk.TruncateFail, Target: 20, Retryable: true, Text: fmt.Sprintf("%+v", *question)}
	if err != nil || d != want {
		t.Errorf("got %+v, %v\nwant %+v", d, err, want)
	}
	unclean, err := h.UncleanElectionPolicy("p", b)
	if err != nil {
		t.Fatal(err)
	}
	q := &sdk.UncleanElectionQuestion{Kind: sdk.UncleanDestination, Mirror: "m", Key: question.Key, UncleanAllowed: true,
		LogEnd: 1, HighWatermark: 2, Diverging: sdk.EpochEnd{Epoch: 3, End: 4}, Live: []int32{5, 6}}
	if d, err := unclean.DecideUncleanElection(t.Context(), q); err != nil || d.Text != fmt.Sprintf("%+v", *q) || !d.Retryable {
		t.Errorf("got %+v, %v\nwant %+v", d, err, *q)
	}
	if b.asked != 0 {
		t.Errorf("the default was asked %d times", b.asked)
	}
	if _, err := h.TruncationPolicy("other", b); err == nil || !strings.Contains(err.Error(), "plugin.other.path") {
		t.Errorf("an unknown plugin: %v", err)
	}
}

// Whatever is wrong with an answer, the default decides, once, and the log says
// why.
func TestDefaultDecides(t *testing.T) {
	path := executable(t)
	for mode, cause := range map[string]string{
		"late":     "no answer within 50ms",
		"error":    "cannot decide",
		"above":    "cut to 21 is not between 0 and the question's target 20",
		"negative": "cut to -1",
		"unset":    "no such action",
		"panic":    "",
	} {
		t.Run(mode, func(t *testing.T) {
			h, e := start(t, testPlugin(path, mode), func(o *Options) {
				if mode == "late" {
					o.DecisionTimeout = 50 * time.Millisecond
				}
			})
			policy, b := truncationOf(t, h)
			d, err := policy.DecideTruncation(t.Context(), question)
			if err != nil || d.Action != sdk.TruncateCut || d.Target != 20 || b.asked != 1 {
				t.Errorf("got %+v, %v, default asked %d times", d, err, b.asked)
			}
			if got := e.wait(t, "did not decide"); !strings.Contains(got, cause) {
				t.Errorf("logged %q, want %q in it", got, cause)
			}
		})
	}
}

// An election that the question does not offer is refused.
func TestUncleanAnswersAreChecked(t *testing.T) {
	path := executable(t)
	for _, mode := range []string{"above", "negative", "unset"} {
		h, _ := start(t, testPlugin(path, mode), nil)
		b := &builtin{}
		policy, err := h.UncleanElectionPolicy("p", b)
		if err != nil {
			t.Fatal(err)
		}
		q := &sdk.UncleanElectionQuestion{Kind: sdk.UncleanDestination, Live: []int32{1, 2}, Diverging: sdk.Undefined}
		if d, err := policy.DecideUncleanElection(t.Context(), q); err != nil || d.Text != "builtin" || b.asked != 1 {
			t.Errorf("%s: %+v, %v", mode, d, err)
		}
	}
}

// The asker's own end is not the plugin's fault, and nothing is decided then.
func TestAskerIsGone(t *testing.T) {
	h, _ := start(t, testPlugin(executable(t), "late"), nil)
	policy, b := truncationOf(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := policy.DecideTruncation(ctx, question); !errors.Is(err, context.DeadlineExceeded) || b.asked != 0 {
		t.Errorf("error %v, default asked %d times", err, b.asked)
	}
}

// A plugin that is killed is started again, and until then the default decides
// at once.
func TestKilled(t *testing.T) {
	h, e := start(t, testPlugin(executable(t), "hold"), func(o *Options) { o.BackoffInitial = time.Hour; o.BackoffMax = time.Hour })
	policy, b := truncationOf(t, h)
	syscall.Kill(h.Status()[0].PID, syscall.SIGKILL)
	got := e.wait(t, "plugin failed")
	if !strings.Contains(got, "signal: killed") {
		t.Errorf("logged %q", got)
	}
	if d, err := policy.DecideTruncation(t.Context(), question); err != nil || d.Action != sdk.TruncateCut || b.asked != 1 {
		t.Errorf("while it is down: %+v, %v", d, err)
	}
	if st := h.Status()[0]; st.PID != 0 || !strings.Contains(st.LastEnd, "killed") {
		t.Errorf("status %+v", st)
	}
}

func TestRestarted(t *testing.T) {
	h, e := start(t, testPlugin(executable(t), "hold"), nil)
	policy, b := truncationOf(t, h)
	dead := h.Status()[0].PID
	syscall.Kill(dead, syscall.SIGKILL)
	e.wait(t, "plugin failed")
	e.wait(t, "plugin started")
	if d, err := policy.DecideTruncation(t.Context(), question); err != nil || d.Text != "held" || b.asked != 0 {
		t.Errorf("after the restart: %+v, %v", d, err)
	}
	if st := h.Status()[0]; st.Starts != 2 || st.PID == dead {
		t.Errorf("status %+v", st)
	}
}

// A process that leaves questions unanswered is hung, and replaced.
func TestHung(t *testing.T) {
	h, e := start(t, testPlugin(executable(t), "late"), func(o *Options) { o.DecisionTimeout = time.Millisecond })
	policy, _ := truncationOf(t, h)
	for range lateLimit {
		policy.DecideTruncation(t.Context(), question)
	}
	e.wait(t, "left 3 questions in a row without an answer")
	e.wait(t, "plugin started")
}

// A plugin that does not react to its stop is killed.
func TestStubborn(t *testing.T) {
	h, _ := start(t, testPlugin(executable(t), "hold"), func(o *Options) { o.StopTimeout = 50 * time.Millisecond })
	syscall.Kill(h.Status()[0].PID, syscall.SIGSTOP)
	h.Close()
	if st := h.Status()[0]; st.LastEnd != "signal: killed" {
		t.Errorf("status %+v", st)
	}
}

// What does not start fails Open, and the message says what the plugin said.
func TestDoesNotStart(t *testing.T) {
	path := executable(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	asTransport := testPlugin(path, "policies")
	asTransport.Kinds = []sdk.Kind{sdk.KindTransport, sdk.KindTruncation}
	for _, c := range []struct {
		name string
		spec Plugin
		want string
	}{
		{"crash", testPlugin(path, "crash"), "panic: no configuration"},
		{"printer", testPlugin(path, "printer"), "nothing may be printed there before Serve"},
		{"other kind", asTransport, "is configured as transport, but offers [truncation unclean-election]"},
		{"no program", testPlugin(script, ""), "exec format error"},
		{"relative", Plugin{Name: "p", Path: "p"}, `plugin.p.path: "p" is not an absolute path`},
		{"no checksum", Plugin{Name: "p", Path: path}, "plugin.p.sha256: want 64 hexadecimal digits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(Options{Dir: shortDir(t), Plugins: []Plugin{c.spec}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v\nwant %q in it", err, c.want)
			}
		})
	}
	if _, err := Open(Options{Dir: "/tmp/" + strings.Repeat("x", 60), Plugins: []Plugin{testPlugin(path, "hold")}}); err == nil ||
		!strings.Contains(err.Error(), "too long") {
		t.Errorf("a long directory: %v", err)
	}
}

func TestVersionMismatch(t *testing.T) {
	_, err := open(Options{Dir: shortDir(t), Plugins: []Plugin{testPlugin(executable(t), "hold")}}, []int{8})
	if err == nil || !strings.Contains(err.Error(), "the plugin speaks [1], the host 8") {
		t.Errorf("error %v, want both lists of versions", err)
	}
}

func TestChecksum(t *testing.T) {
	path := executable(t)
	spec := testPlugin(path, "hold")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, is error, text string) {
		t.Helper()
		_, err := Open(Options{Dir: shortDir(t), Plugins: []Plugin{spec}})
		if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	bad := append([]byte(nil), good...)
	bad[len(bad)/2] ^= 1
	os.WriteFile(path, bad, 0o700)
	refused("changed byte", ErrChecksum, "configured is "+spec.SHA256)

	// A link in its place that leads to another program.
	os.Remove(path)
	if err := os.Symlink("/bin/sh", path); err != nil {
		t.Fatal(err)
	}
	refused("replaced link", ErrChecksum, "")
	os.Remove(path)
	os.WriteFile(path, good, 0o600)
	refused("not executable", nil, "is not executable")
	os.Chmod(path, 0o772)
	refused("writable", nil, "chmod go-w")

	// Replaced while it runs: the old process goes on, a new one is refused.
	os.Chmod(path, 0o700)
	h, e := start(t, spec, nil)
	os.WriteFile(path+".new", bad, 0o700)
	os.Rename(path+".new", path)
	syscall.Kill(h.Status()[0].PID, syscall.SIGKILL)
	e.wait(t, "checksum differs")
}

// A plugin sees nothing of the broker: no environment, no standard input.
func TestNothingIsInherited(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST_SECRET", "canary")
	spec := testPlugin(executable(t), "inherit")
	spec.Env = []string{"ITS_OWN=1"}
	h, _ := start(t, spec, nil)
	policy, _ := truncationOf(t, h)
	d, err := policy.DecideTruncation(t.Context(), question)
	if err != nil || strings.Contains(d.Text, "canary") || strings.Contains(d.Text, "HOME=") || !strings.Contains(d.Text, "ITS_OWN=1") {
		t.Errorf("%+v, %v", d, err)
	}
}

// kill -9 of the broker ends its plugins, and the next broker removes what it
// left.
func TestBrokerDies(t *testing.T) {
	path, dir := executable(t), shortDir(t)
	broker := exec.Command(path, "broker", dir, path)
	in, err := broker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := broker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the broker said %q", line)
	}
	plugin, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Skipf("pidfd_open: %v", err)
	}
	defer unix.Close(plugin)
	broker.Process.Kill()
	broker.Wait()
	ready := []unix.PollFd{{Fd: int32(plugin), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, 20_000)
	for err == unix.EINTR {
		n, err = unix.Poll(ready, 20_000)
	}
	if err != nil || n != 1 {
		t.Fatalf("the plugin lives on: %d, %v", n, err)
	}

	left, _ := filepath.Glob(filepath.Join(dir, "run-*"))
	if len(left) != 1 {
		t.Fatalf("left are %v, want one directory", left)
	}
	h, err := Open(Options{Dir: dir, Plugins: []Plugin{testPlugin(path, "hold")}})
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := filepath.Glob(filepath.Join(dir, "run-*")); len(now) != 1 || now[0] == left[0] {
		t.Errorf("directories are %v, want only the living broker's", now)
	}
	// A second broker leaves the first one's directory alone.
	if n := sweep(dir); n != 0 {
		t.Errorf("swept %d directories of a living broker", n)
	}
	h.Close()
	if now, _ := os.ReadDir(dir); len(now) != 0 {
		t.Errorf("after Close there is %v", now)
	}
}

// Only the plugin itself may stand at the other end of a connection's socket.
func TestStrangerAtTheSocket(t *testing.T) {
	h, _ := start(t, testPlugin(executable(t), "hold"), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial, err := h.Dialer("p")
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	r := *h.plugins["p"].current()
	r.process = &process{cmd: &exec.Cmd{Process: &os.Process{Pid: 1}}} // whom we expect is another
	if _, err := h.plugins["p"].dialRun(t.Context(), &r, "tcp", l.Addr().String()); err == nil ||
		!strings.Contains(err.Error(), "listens on the socket") {
		t.Errorf("error %v", err)
	}
	h.Close()
	if _, err := dial(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, ErrDown) {
		t.Errorf("after Close: %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{initial: 100 * time.Millisecond, max: time.Second, breaker: 6, breakerWait: time.Hour, stableAfter: time.Minute}
	var got []string
	for _, ran := range []time.Duration{0, 0, time.Second, 0, 0, 0, 0, 2 * time.Minute, 0} {
		wait, open := b.failed(ran)
		got = append(got, fmt.Sprint(wait, open))
	}
	want := "100ms false,200ms false,400ms false,800ms false,1s false,1h0m0s true,1h0m0s true,100ms false,200ms false"
	if strings.Join(got, ",") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ","), want)
	}
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\nb\x00\xff" + strings.Repeat("é", 400))
	f.Fuzz(func(t *testing.T, s string) {
		if got := oneLine(s); len(got) > maxText+8 || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Errorf("%q became %q", s, got)
		}
	})
}
