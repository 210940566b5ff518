package kafka

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkLookout: a connection's goroutine that was started by the thread that looks
// at the network, and then works long, leaves nobody who looks: with a processor idle
// beside it every other client waits until the runtime looks by itself, 10 ms later. The
// ratio is the median wait with lookout to that without, each taking its turn; it wants an
// idle processor.
func BenchmarkLookout(b *testing.B) {
	if runtime.GOMAXPROCS(0) < 2 {
		b.Skip("one processor: nobody else could look")
	}
	var with, without []time.Duration
	for b.Loop() {
		with = append(with, noticed(b, lookout)...)
		without = append(without, noticed(b, func() {})...)
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(float64(with[len(with)/2].Microseconds()), "us-with")
	b.ReportMetric(float64(without[len(without)/2].Microseconds()), "us-without")
	b.ReportMetric(float64(with[len(with)/2])/float64(without[len(without)/2]), "of-without")
}

// noticed is how long what arrives waits for its goroutine, each time beside one that the
// network has just started, that does first and then works until the other was seen.
func noticed(b *testing.B, do func()) (took []time.Duration) {
	const tries = 20
	first, second := newPipe(b), newPipe(b)
	var seen atomic.Int32
	var running sync.WaitGroup
	running.Go(func() {
		for range tries {
			second.read(b)
			seen.Add(1)
		}
	})
	running.Go(func() {
		for i := range int32(tries) {
			first.read(b)
			do()
			second.write(b) // by the kernel alone: the scheduler learns nothing of it
			begun := time.Now()
			for seen.Load() <= i && time.Since(begun) < time.Second {
			}
			took = append(took, time.Since(begun))
		}
	})
	// From outside, and after a pause: every thread of ours but the one that looks at the
	// network has to be asleep when it comes.
	bell := exec.CommandContext(b.Context(), "sh", "-c", "for i in $(seq 20); do sleep 0.02; printf x; done")
	bell.Stdout = os.NewFile(uintptr(first.w), "pipe")
	if err := bell.Run(); err != nil {
		b.Fatal(err)
	}
	running.Wait()
	return took
}

// rawPipe is a pipe whose reader waits in the runtime's poller, and whose writer
// tells the runtime nothing.
type rawPipe struct {
	r *os.File
	w int
}

func newPipe(t testing.TB) rawPipe {
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	p := rawPipe{os.NewFile(uintptr(fds[0]), "pipe"), fds[1]}
	t.Cleanup(func() {
		p.r.Close()
		syscall.Close(p.w)
	})
	return p
}

func (p rawPipe) read(t testing.TB) {
	if _, err := p.r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func (p rawPipe) write(t testing.TB) {
	if _, err := syscall.Write(p.w, []byte{1}); err != nil {
		t.Error(err)
	}
}
