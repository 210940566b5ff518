package mirror

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// world is one destination broker without its wire server: real controller, real
// logs, real manager. Its source is a kfake cluster.
type world struct {
	t     *testing.T
	ctx   context.Context
	ctrl  *controller.Controller
	parts *partition.Manager
	store *segment.Store
	m     *Manager
	c     *Coordinator
	dir   string

	cutBefore uint64 // records, by other tests of this process

	groups struct {
		sync.Mutex
		active    map[string]bool
		committed map[string]map[nameKey]int64
	}
}

// newWorld starts a destination. tune changes the manager's options.
func newWorld(t *testing.T, tune func(*Options)) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, dir: t.TempDir()}
	w.groups.active, w.groups.committed = make(map[string]bool), make(map[string]map[nameKey]int64)

	ctrl, err := controller.Open(ctx, controller.Options{Dir: w.dir + "/metadata", NodeID: 1, SessionTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.ctrl = ctrl
	t.Cleanup(func() { _ = ctrl.Close() })
	w.openStorage()
	t.Cleanup(func() { w.closeStorage() })
	w.startManager(tune)
	t.Cleanup(func() { w.m.Close() })
	w.cutBefore = w.m.metrics.recordsCut.Get()
	return w
}

// cut is how many records were counted as cut since the world began.
func (w *world) cut() int { return int(w.m.metrics.recordsCut.Get() - w.cutBefore) }

func (w *world) openStorage() {
	w.t.Helper()
	store, err := segment.Open(segment.Options{Dir: w.dir + "/data", OnDamage: w.damaged, Logger: slog.New(slog.NewTextHandler(testWriter{w.t}, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = store
	w.parts = partition.NewManager(partition.Options{NodeID: 1, Stores: []*segment.Store{store}, Logger: slog.New(slog.DiscardHandler)})
	w.ctrl.Watch(w.parts.Apply)
	w.register()
}

func (w *world) damaged(id segment.LogID, d *segment.DamageError) {
	if p := w.parts.Damaged(id, d); p != nil {
		w.m.Damaged(p.Key().Topic, p.Key().Partition, d)
	}
}

func (w *world) register() {
	w.t.Helper()
	r := controller.RegisterBroker{ID: 1, Endpoints: []metadata.Endpoint{{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 9092, Protocol: "PLAINTEXT"}}}
	copy(r.Incarnation[:], time.Now().Format("150405.000000000"))
	epoch, err := w.ctrl.RegisterBroker(w.ctx, r)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.ctrl.Heartbeat(w.ctx, controller.Heartbeat{Broker: 1, Epoch: epoch, Revision: w.ctrl.Image().Revision}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) closeStorage() {
	w.parts.Close()
	_ = w.store.Close()
}

func (w *world) startManager(tune func(*Options)) {
	w.t.Helper()
	o := Options{
		NodeID: 1, ClusterID: w.ctrl.Image().ClusterID, Controller: w.ctrl, Partitions: w.parts,
		CommitGroup: w.commitGroup, RefreshInterval: 50 * time.Millisecond, RetryInitial: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(testWriter{w.t}, nil)),
	}
	if tune != nil {
		tune(&o)
	}
	m, err := NewManager(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.m, w.c = m, NewCoordinator(m)
	m.Start()
}

// testWriter shows the log of a test that failed.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func (w *world) commitGroup(_ context.Context, group string, offsets []GroupOffset) ([]error, error) {
	w.groups.Lock()
	defer w.groups.Unlock()
	if w.groups.active[group] {
		return nil, ErrGroupActive
	}
	if w.groups.committed[group] == nil {
		w.groups.committed[group] = make(map[nameKey]int64)
	}
	for _, o := range offsets {
		w.groups.committed[group][nameKey{o.Topic, o.Partition}] = o.Offset
	}
	return make([]error, len(offsets)), nil
}

// newSource starts a source cluster.
func newSource(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (w *world) create(name string, src *kfake.Cluster) {
	w.t.Helper()
	err := w.c.Create(w.ctx, name, map[string]string{
		"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start(mirror, patterns string) []string {
	w.t.Helper()
	out, err := w.c.Start(w.ctx, StartRequest{Mirror: mirror, Include: []string{patterns}})
	return w.names(out, err)
}

func (w *world) names(out []TopicOutcome, err error) []string {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, o := range out {
		if o.Err != nil {
			w.t.Fatalf("%s: %v", o.Name, o.Err)
		}
		names = append(names, o.Name)
	}
	return names
}

// produce appends records to a source topic and returns when they are there.
func produce(t *testing.T, src *kfake.Cluster, topic string, partition int32, values ...string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v)}
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// until waits for a condition, checking it whenever the metadata changes and
// otherwise every few milliseconds; the test's own deadline ends it.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for !ok() {
		select {
		case <-w.ctx.Done():
			w.t.Fatalf("never: %s\n%s", what, w.dump())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (w *world) dump() string {
	var b bytes.Buffer
	for _, d := range w.c.Describe(context.Background(), nil) {
		for _, t := range d.Topics {
			for _, p := range t.Partitions {
				b.WriteString(strings.Join([]string{d.Name, t.Name, p.State.String(), p.ErrorMessage}, " ") + "\n")
			}
		}
	}
	return b.String()
}

func (w *world) partition(topic string, p int32) DescribedPartition {
	for _, d := range w.c.Describe(context.Background(), nil) {
		for _, t := range d.Topics {
			if t.Name == topic && int(p) < len(t.Partitions) {
				return t.Partitions[p]
			}
		}
	}
	return DescribedPartition{State: metadata.StateUnknown, Lag: -1}
}

func (w *world) state(topic string, p int32, want metadata.MirrorState) {
	w.t.Helper()
	w.until(topic+" "+want.String(), func() bool { return w.partition(topic, p).State == want })
}

// caughtUp waits until the partition is mirrored up to end.
func (w *world) caughtUp(topic string, p int32, end int64) {
	w.t.Helper()
	w.until(topic+" caught up", func() bool {
		part := w.parts.Get(topic, p)
		return part != nil && part.HighWatermark() == end && w.partition(topic, p).Lag == 0
	})
}

func (w *world) failed(topic string, p int32, text string) DescribedPartition {
	w.t.Helper()
	var d DescribedPartition
	w.until(topic+" failed with "+text, func() bool {
		d = w.partition(topic, p)
		return d.State == metadata.StateFailed && strings.Contains(d.ErrorMessage, text)
	})
	return d
}

// bytesOf reads a whole log.
func (w *world) bytesOf(topic string, p int32) []byte {
	w.t.Helper()
	log := w.parts.Get(topic, p).Log()
	var all []byte
	for offset, end := log.StartOffset(), log.EndOffset(); offset < end; {
		v, err := log.Read(offset, 1<<20, end, true)
		if err != nil {
			w.t.Fatal(err)
		}
		buf := make([]byte, v.Len())
		if _, err := v.ReadAt(buf, 0); err != nil {
			w.t.Fatal(err)
		}
		v.Release()
		if len(buf) == 0 {
			w.t.Fatal(errors.New("empty read"))
		}
		all = append(all, buf...)
		offset = nextOffset(w.t, all)
	}
	return all
}

// Whoever starts a goroutine ends it, the manager's among them.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreTopFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"),
	)
}
