package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

var topicID = metadata.TopicID{15: 7}

// cluster is some brokers of one process with one partition, and the controller's
// part played by the test: it changes the metadata, and whoever is up follows.
type cluster struct {
	t     testing.TB
	clock clock.Clock
	mu    sync.Mutex // guards image and up, which sessions look at
	image *metadata.Image
	nodes map[int32]*node
	asked chan proposal
}

// proposal is a leader's wish for an ISR.
type proposal struct {
	change partition.ISRChange
	answer chan partition.ISRResult
}

type node struct {
	c     *cluster
	id    int32
	fs    *vfs.MemFS
	store *segment.Store
	parts *partition.Manager
	repl  *Manager // nil where the test fetches by hand
	up    bool
	auto  bool
	deaf  bool // hears of no metadata
	seen  *metadata.Image
}

func newCluster(t testing.TB, auto bool, configs map[string]string, brokers ...int32) *cluster {
	c := &cluster{t: t, clock: clock.System(), image: metadata.NewImage(), nodes: map[int32]*node{}, asked: make(chan proposal, 16)}
	for _, id := range brokers {
		c.nodes[id] = &node{c: c, id: id, fs: vfs.NewCrashableMem(), auto: auto}
	}
	c.change(func(e *metadata.Editor) {
		for _, id := range brokers {
			e.PutBroker(&metadata.Broker{ID: id, Epoch: 1})
		}
		e.PutTopic(&metadata.Topic{ID: topicID, Name: "orders", Configs: configs, Partitions: []*metadata.Partition{{
			Replicas: brokers, ISR: brokers, Leader: brokers[0], LeaderEpoch: 1,
		}}})
	})
	for _, id := range brokers {
		c.nodes[id].start()
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if n.up {
				n.stop()
			}
		}
	})
	return c
}

// change makes the next image, and has everybody who is up follow it.
func (c *cluster) change(f func(e *metadata.Editor)) {
	c.mu.Lock()
	e := c.image.Edit()
	f(e)
	c.image = e.Image(c.image.Revision + 1)
	c.mu.Unlock()
	for _, n := range c.nodes {
		if n.up && !n.deaf {
			n.follow()
		}
	}
}

// alter changes the partition's metadata.
func (c *cluster) alter(f func(p *metadata.Partition)) {
	c.change(func(e *metadata.Editor) {
		t := *c.image.TopicByID(topicID)
		p := *t.Partitions[0]
		p.ISR, p.Replicas = slices.Clone(p.ISR), slices.Clone(p.Replicas)
		p.PartitionEpoch++
		f(&p)
		t.Partitions = []*metadata.Partition{&p}
		e.PutTopic(&t)
	})
}

func (c *cluster) meta() *metadata.Partition { return c.image.TopicByID(topicID).Partitions[0] }

// elect makes a broker the leader of the next epoch.
func (c *cluster) elect(id int32) {
	c.alter(func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = id, p.LeaderEpoch+1 })
}

func (n *node) start() {
	var err error
	n.store, err = segment.Open(segment.Options{Dir: "data", FS: n.fs, Clock: n.c.clock, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.parts = partition.NewManager(partition.Options{
		NodeID: n.id, Stores: []*segment.Store{n.store}, Clock: n.c.clock, Logger: slog.New(slog.DiscardHandler), AlterISR: n.c.ask,
	})
	if n.auto {
		n.repl = NewManager(Options{NodeID: n.id, Partitions: n.parts, Clock: n.c.clock})
		n.repl.session = n.c.session(n.id)
	}
	n.c.mu.Lock()
	n.up, n.seen = true, nil
	n.c.mu.Unlock()
	n.follow()
}

func (n *node) follow() {
	n.parts.Apply(n.seen, n.c.image)
	n.seen = n.c.image
	if n.repl != nil {
		n.repl.Apply(n.c.image)
	}
}

// stop ends a node as a clean stop does.
func (n *node) stop() {
	n.c.mu.Lock()
	n.up = false
	n.c.mu.Unlock()
	if n.repl != nil {
		n.repl.Close()
	}
	n.parts.Close()
	n.store.Close()
}

// cut takes the power away: percent of what was not synced is on the disk.
func (n *node) cut(percent int, seed uint64) {
	after := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 0))})
	n.stop()
	n.fs = after
}

func (n *node) p() *partition.Partition { return n.parts.ByID(topicID, 0) }

// ask is the controller's ear; the test is its mouth.
func (c *cluster) ask(ctx context.Context, changes []partition.ISRChange) []partition.ISRResult {
	out := make([]partition.ISRResult, len(changes))
	for i := range changes {
		p := proposal{changes[i], make(chan partition.ISRResult, 1)}
		select {
		case c.asked <- p:
		case <-ctx.Done():
			out[i].Err = ctx.Err()
			continue
		}
		select {
		case out[i] = <-p.answer:
		case <-ctx.Done():
			out[i].Err = ctx.Err()
		}
	}
	return out
}

// decide takes a proposal if nothing has moved since and all of its members are
// alive, as the controller does.
func (c *cluster) decide(p proposal) {
	meta := c.meta()
	switch {
	case p.change.LeaderEpoch != meta.LeaderEpoch || p.change.PartitionEpoch != meta.PartitionEpoch:
		p.answer <- partition.ISRResult{Err: errors.New("fenced")}
		return
	}
	var isr []int32
	for _, m := range p.change.ISR {
		b := c.image.Broker(m.ID)
		if b.Fenced || m.Epoch >= 0 && m.Epoch != b.Epoch {
			p.answer <- partition.ISRResult{Err: partition.ErrISRRefused}
			return
		}
		isr = append(isr, m.ID)
	}
	c.alter(func(p *metadata.Partition) { p.ISR = isr })
	p.answer <- partition.ISRResult{PartitionEpoch: c.meta().PartitionEpoch}
}

// fetched is an answer of a leader to one fetch.
type fetched struct {
	partition.ReadResult
	records []byte
	err     error
}

// read asks a leader as a follower does. The network is a call.
func (c *cluster) read(replica, leader int32, epoch int64, r partition.ReadRequest, durable int64) fetched {
	c.mu.Lock()
	n := c.nodes[leader]
	up := n != nil && n.up
	c.mu.Unlock()
	if !up {
		return fetched{err: io.ErrUnexpectedEOF}
	}
	p := n.p()
	if p == nil {
		return fetched{err: partition.ErrUnknown}
	}
	res, err := p.ReadReplica(r, partition.Replica{ID: replica, BrokerEpoch: epoch, Durable: durable})
	f := fetched{ReadResult: res, err: err}
	if res.View.Len() > 0 {
		f.records = make([]byte, res.View.Len())
		if _, err := res.View.ReadAt(f.records, 0); err != nil && err != io.EOF {
			f.err = err
		}
	}
	res.View.Release()
	return f
}

// session is a session of a follower over calls. Its long poll looks every
// millisecond.
func (c *cluster) session(replica int32) func(context.Context, int32) (sdk.Session, error) {
	return func(ctx context.Context, leader int32) (sdk.Session, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := c.nodes[leader]; n == nil || !n.up {
			return nil, fmt.Errorf("broker %d is down", leader)
		}
		return &callSession{c: c, replica: replica, leader: leader, poke: make(chan struct{}, 1), closed: make(chan struct{})}, nil
	}
}

type callSession struct {
	c               *cluster
	replica, leader int32
	poke            chan struct{}
	closing         sync.Once
	closed          chan struct{}
}

func (s *callSession) Interrupt() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *callSession) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

func (s *callSession) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	deadline := time.Now().Add(req.MaxWait)
	for {
		quiet := true
		for i := range req.Partitions {
			fp := &req.Partitions[i]
			f := s.c.read(s.replica, s.leader, -1, partition.ReadRequest{
				Offset: fp.Offset, MaxBytes: int(fp.MaxBytes), AtLeastOne: true,
				CurrentLeaderEpoch: fp.CurrentLeaderEpoch, LastFetchedEpoch: fp.LastFetchedEpoch,
			}, fp.DurableEnd)
			if errors.Is(f.err, io.ErrUnexpectedEOF) {
				return f.err
			}
			if f.err == nil && len(f.records) == 0 && f.Diverging == nil && time.Now().Before(deadline) {
				continue
			}
			quiet = false
			head := sdk.PartitionHeader{
				Key: fp.PartitionKey, ErrorCode: codeOf(f.err), HighWatermark: f.HighWatermark, LastStable: -1, LogStart: f.LogStart,
				Diverging: sdk.Undefined, LeaderID: -1, LeaderEpoch: -1, RecordBytes: len(f.records),
			}
			if f.Diverging != nil {
				head.Diverging = *f.Diverging
			}
			if err := h.Partition(&head, &sliceReader{f.records}); err != nil {
				return err
			}
		}
		if !quiet {
			return nil
		}
		select {
		case <-s.poke:
			return nil
		case <-time.After(time.Millisecond): // the long poll's resolution
		case <-s.closed:
			return io.ErrClosedPipe
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type sliceReader struct{ b []byte }

func (r *sliceReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

func codeOf(err error) int16 {
	for is, code := range map[error]*kerr.Error{
		partition.ErrFencedEpoch: kerr.FencedLeaderEpoch, partition.ErrUnknownEpoch: kerr.UnknownLeaderEpoch,
		partition.ErrNotLeader: kerr.NotLeaderForPartition, partition.ErrOutOfRange: kerr.OffsetOutOfRange,
		partition.ErrUnknown: kerr.UnknownTopicOrPartition, partition.ErrStorage: kerr.KafkaStorageError,
	} {
		if errors.Is(err, is) {
			return code.Code
		}
	}
	if err != nil {
		return kerr.UnknownServerError.Code
	}
	return 0
}

type answer struct {
	offset int64
	err    error
}

// produce writes one record.
func (n *node) produce(value string, acks int16) chan answer {
	b := record.Build(record.NoProducer(time.Now().UnixMilli()), []record.Record{{Value: []byte(value)}})
	c := make(chan answer, 1)
	n.p().Produce(b, partition.ProduceOptions{Acks: acks, Timeout: time.Hour}, func(r partition.ProduceResult, err error) { c <- answer{r.BaseOffset, err} })
	return c
}

func (c *cluster) wait(ch chan answer) answer {
	c.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case a := <-ch:
			return a
		case p := <-c.asked:
			c.decide(p)
		case <-deadline:
			c.t.Fatal("no answer")
		}
	}
}

// until waits for a condition, while the controller decides.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.After(20 * time.Second); !ok(); {
		select {
		case p := <-c.asked:
			c.decide(p)
		case <-time.After(time.Millisecond): // between two looks
		case <-deadline:
			c.t.Fatalf("never: %s", what)
		}
	}
}

// contents is what a replica holds, from its log start: value by offset.
func (n *node) contents() map[int64]string {
	log := n.p().Log()
	out := map[int64]string{}
	for at := log.StartOffset(); at < log.EndOffset(); {
		v, err := log.Read(at, 1<<20, log.EndOffset(), true)
		if err != nil {
			n.c.t.Fatal(err)
		}
		b := make([]byte, v.Len())
		if _, err := v.ReadAt(b, 0); err != nil && err != io.EOF {
			n.c.t.Fatal(err)
		}
		v.Release()
		for len(b) > 0 {
			var batch record.Batch
			if batch, b, err = record.Next(b); err != nil {
				n.c.t.Fatal(err)
			}
			if err := batch.VerifyCRC(); err != nil {
				n.c.t.Fatal(err)
			}
			err = segment.EachRecord(batch, 1<<20, func(r record.Record) error {
				out[batch.BaseOffset()+int64(r.OffsetDelta)] = fmt.Sprintf("%d:%s", batch.PartitionLeaderEpoch(), r.Value)
				return nil
			})
			if err != nil {
				n.c.t.Fatal(err)
			}
			at = batch.NextOffset()
		}
	}
	return out
}
