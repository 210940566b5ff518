package partition

import (
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// disk is a file system whose fsyncs of log files wait or fail on demand.
type disk struct {
	mu   sync.Mutex
	gate chan struct{} // nil: open
	held chan struct{} // says that an fsync waits at the gate
	err  error
	make error // of making a file that a compaction writes
}

func (d *disk) hold() (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.gate = gate
	d.mu.Unlock()
	return sync.OnceFunc(func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	})
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	d.err = err
	d.mu.Unlock()
}

func (d *disk) failCompaction(err error) {
	d.mu.Lock()
	d.make = err
	d.mu.Unlock()
}

func (d *disk) MaybeError(op errorfs.Op) error {
	if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".cleaned") {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.make
	}
	if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
		return nil
	}
	if !isLogFile(op.Path) {
		return nil
	}
	d.mu.Lock()
	gate, err := d.gate, d.err
	d.mu.Unlock()
	if gate != nil {
		select {
		case d.held <- struct{}{}:
		default: // said already
		}
		<-gate
	}
	return err
}

func (d *disk) String() string { return "disk" }

// isLogFile says that a file is, or becomes, a segment.
func isLogFile(path string) bool {
	return strings.HasSuffix(path, ".log") || strings.HasSuffix(path, ".cleaned")
}

const self = 1

var topicID = metadata.TopicID{9: 1}

// world is one broker's partition manager over a disk in memory, and the image
// that it was last given.
type world struct {
	t     *testing.T
	disk  *disk
	fs    vfs.FS
	clock *clock.Manual
	store *segment.Store
	m     *Manager
	image *metadata.Image
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, disk: &disk{held: make(chan struct{}, 1)}, fs: vfs.NewMem(), clock: clock.NewManual(time.UnixMilli(1_000_000))}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.store, err = segment.Open(segment.Options{
		Dir: "data", FS: errorfs.Wrap(w.fs, w.disk), Clock: w.clock, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.m = NewManager(Options{NodeID: self, Stores: []*segment.Store{w.store}, Clock: w.clock, Logger: slog.New(slog.DiscardHandler)})
	if w.image != nil {
		w.m.Apply(nil, w.image)
	}
}

func (w *world) close() {
	w.m.Close()
	w.store.Close()
}

// apply changes the topic and lets the manager follow.
func (w *world) apply(change func(t *metadata.Topic)) *Partition {
	w.t.Helper()
	prev := w.image
	base := prev
	if base == nil {
		base = metadata.NewImage()
	}
	topic := &metadata.Topic{
		ID: topicID, Name: "orders", Configs: map[string]string{},
		Partitions: []*metadata.Partition{{Replicas: []int32{self}, ISR: []int32{self}, Leader: self, LeaderEpoch: 3}},
	}
	if old := base.TopicByID(topicID); old != nil {
		copied, p := *old, *old.Partitions[0] // an image never changes
		copied.Partitions, copied.Configs = []*metadata.Partition{&p}, maps.Clone(old.Configs)
		topic = &copied
	}
	change(topic)
	e := base.Edit()
	e.PutTopic(topic)
	w.image = e.Image(base.Revision + 1)
	w.m.Apply(prev, w.image)
	p := w.m.Get("orders", 0)
	if p == nil || w.m.ByID(topicID, 0) != p {
		w.t.Fatal("partition is not found by name and by id")
	}
	return p
}

func batch(n int) []byte {
	recs := make([]record.Record, n)
	for i := range recs {
		recs[i] = record.Record{OffsetDelta: int32(i), Value: []byte("v")}
	}
	return record.Build(record.NoProducer(1_000_000), recs)
}

type answer struct {
	r   ProduceResult
	err error
}

func produce(p *Partition, b []byte, acks int16) chan answer {
	c := make(chan answer, 1)
	p.Produce(b, ProduceOptions{Acks: acks}, func(r ProduceResult, err error) { c <- answer{r, err} })
	return c
}

func (w *world) wait(c chan answer) answer {
	w.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(10 * time.Second):
		w.t.Fatal("no answer")
	}
	return answer{}
}

func end(p *Partition) int64 {
	e, _ := p.LogEnd()
	return e
}
