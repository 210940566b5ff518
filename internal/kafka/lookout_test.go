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

// A connection's goroutine that was started by the thread that looks at the network,
// and then works long, left nobody who looks: with a processor idle beside it every
// other client waited until the runtime looked by itself, 10 ms later. Small produce
// requests beside describing ones of some milliseconds had ten times their p99.
func TestSomebodyLooksAtTheNetwork(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("one processor: nobody else could look")
	}
	const tries = 20
	first, second := newPipe(t), newPipe(t)
	var seen atomic.Int32
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		for range tries {
			second.read(t)
			seen.Add(1)
		}
	})
	waits := make(chan []time.Duration)
	running.Go(func() {
		var took []time.Duration
		for i := range int32(tries) {
			first.read(t)
			lookout()
			second.write(t) // by the kernel alone: the scheduler learns nothing of it
			begun := time.Now()
			for seen.Load() <= i && time.Since(begun) < time.Second {
			}
			took = append(took, time.Since(begun))
		}
		waits <- took
	})
	// From outside, and after a pause: every thread of ours but the one that looks at the
	// network has to be asleep when it comes.
	bell := exec.CommandContext(t.Context(), "sh", "-c", "for i in $(seq 20); do sleep 0.02; printf x; done")
	bell.Stdout = os.NewFile(uintptr(first.w), "pipe")
	if err := bell.Run(); err != nil {
		t.Fatal(err)
	}
	took := <-waits
	slices.Sort(took)
	// On a busy machine some tries find no processor idle; without lookout nearly each
	// takes most of the runtime's 10 ms.
	if quarter := took[tries/4]; quarter > 3*time.Millisecond {
		t.Errorf("beside a request that works another one was seen after %v", took)
	}
}

// rawPipe is a pipe whose reader waits in the runtime's poller, and whose writer
// tells the runtime nothing.
type rawPipe struct {
	r *os.File
	w int
}

func newPipe(t *testing.T) rawPipe {
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

func (p rawPipe) read(t *testing.T) {
	if _, err := p.r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func (p rawPipe) write(t *testing.T) {
	if _, err := syscall.Write(p.w, []byte{1}); err != nil {
		t.Error(err)
	}
}
