package pipeline

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// The mirror path without a network: a session that serves batches from
// memory, and logs on disk. Beside it, in the same run, the null mirror: the
// same session, the same CRC check, the same number of bytes written with
// 1 MiB writes into one file, and nothing else. The metric "of-null" is the
// median of (null mirror's time / worker's time), taken in alternating rounds,
// because the machine's speed changes from minute to minute.
func BenchmarkMirror(b *testing.B) {
	for _, c := range []benchCase{
		{partitions: 1, perPartition: 1 << 20, batch: 64 << 10},
		{partitions: 50, perPartition: 1 << 20, batch: 64 << 10},
		{partitions: 50, perPartition: 1 << 20, batch: 1 << 20},
		{partitions: 50, perPartition: 1 << 20, batch: 16 << 10},
		{partitions: 2000, perPartition: 16 << 10, batch: 16 << 10},
	} {
		b.Run(fmt.Sprintf("partitions=%d/batch=%dKiB", c.partitions, c.batch>>10), func(b *testing.B) {
			b.Run("file", func(b *testing.B) { c.run(b, fileTargets) })
			b.Run("segment", func(b *testing.B) { c.run(b, segmentTargets) })
		})
	}
}

type benchCase struct {
	partitions   int
	perPartition int // bytes of one response
	batch        int
}

const roundBytes = 256 << 20

func (c benchCase) run(b *testing.B, targets func(b *testing.B, n int) []Target) {
	s := newMemSession(c)
	null := newNullMirror(b)
	logs := targets(b, c.partitions)
	s.keep(null.fetch) // touch the pages once, as a running system has
	runWorker(s, logs)

	var ratios []float64
	b.SetBytes(roundBytes)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		start := time.Now()
		s.keep(null.fetch)
		nullTime := time.Since(start)
		b.StartTimer()

		start = time.Now()
		runWorker(s, logs)
		ratios = append(ratios, nullTime.Seconds()/time.Since(start).Seconds())
	}
	b.StopTimer()
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-null")
}

// runWorker mirrors until the session has served a round.
func runWorker(s *memSession, logs []Target) {
	done := make(chan struct{})
	s.begin(func() { close(done) })
	w := NewWorker(WorkerOptions{
		Open:              func(context.Context) (sdk.Session, error) { return s, nil },
		MaxBytes:          16 << 20,
		PartitionMaxBytes: int32(s.c.perPartition),
	})
	for i, t := range logs {
		w.Add(New(Options{Key: benchKey(i), Target: t, LeaderEpoch: 100, SourceEpoch: -1, Observer: quiet{}}))
	}
	<-done
	w.Close()
}

type quiet struct{}

func (quiet) Progress(*Pipeline, Position) {}
func (quiet) NearEpoch(*Pipeline, int32)   {}
func (quiet) Ended(_ *Pipeline, e End)     { panic(e.Err) }

func benchKey(i int) sdk.PartitionKey {
	return sdk.PartitionKey{Topic: "t", TopicID: [16]byte{1}, Partition: int32(i)}
}

// memSession serves whole batches from memory: every partition asked for, up
// to the response's limit. Only base offsets differ between two answers, and
// they are outside the CRC.
type memSession struct {
	c        benchCase
	template []byte
	reader   bytes.Reader
	header   sdk.PartitionHeader

	mu      sync.Mutex
	served  int
	full    func() // called once when a round has been served
	blocked chan struct{}
}

func newMemSession(c benchCase) *memSession {
	s := &memSession{c: c, blocked: make(chan struct{})}
	h := record.NoProducer(1000)
	h.LeaderEpoch = 1
	var recs []record.Record
	value := bytes.Repeat([]byte("v"), 1000)
	for size := record.HeaderSize; size+1010 < c.batch; size += 1010 {
		recs = append(recs, record.Record{OffsetDelta: int32(len(recs)), Value: value})
	}
	one := record.Build(h, recs)
	for len(s.template)+len(one) <= c.perPartition {
		s.template = append(s.template, one...)
	}
	return s
}

func (s *memSession) begin(full func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served, s.full = 0, full
}

// keep calls fetch, which fetches from the session, until a round is over.
func (s *memSession) keep(fetch func(*memSession) error) {
	over := false
	s.begin(func() { over = true })
	for !over {
		if err := fetch(s); err != nil {
			panic(err)
		}
	}
}

func (s *memSession) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	s.mu.Lock()
	full := s.full
	over := s.served >= roundBytes
	if over {
		s.full = nil
	}
	s.mu.Unlock()
	if over {
		if full != nil {
			full()
		}
		<-ctx.Done()
		return ctx.Err()
	}
	for left := int(req.MaxBytes); left >= len(s.template); left -= len(s.template) {
		if len(req.Partitions) == 0 {
			break
		}
		p := &req.Partitions[0]
		req.Partitions = req.Partitions[1:]
		if err := s.partition(p, h); err != nil {
			return err
		}
	}
	return nil
}

func (s *memSession) partition(p *sdk.FetchPartition, h sdk.FetchHandler) error {
	next := p.Offset
	for b := s.template; len(b) > 0; {
		batch, rest, err := record.Next(b)
		if err != nil {
			return err
		}
		batch.SetBaseOffset(next)
		next, b = batch.NextOffset(), rest
	}
	s.reader.Reset(s.template)
	s.header = sdk.PartitionHeader{Key: p.PartitionKey, HighWatermark: next, LogStart: 0, Diverging: sdk.Undefined, RecordBytes: len(s.template)}
	s.served += len(s.template)
	return h.Partition(&s.header, &s.reader)
}

func (s *memSession) Close() error { return nil }

// ring is one file that is written in a circle, so that its pages exist.
type ring struct {
	f    *os.File
	size int64
	at   int64
}

func newRing(b *testing.B, path string, size int64) *ring {
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return &ring{f: f, size: size}
}

func (r *ring) write(p []byte) error {
	if r.at+int64(len(p)) > r.size {
		r.at = 0
	}
	_, err := r.f.WriteAt(p, r.at)
	r.at += int64(len(p))
	return err
}

// nullMirror reads, checks CRCs and writes; it knows no partitions.
type nullMirror struct {
	ring *ring
	buf  []byte
	req  sdk.FetchRequest
	next int
	have int
}

func newNullMirror(b *testing.B) *nullMirror {
	return &nullMirror{ring: newRing(b, filepath.Join(b.TempDir(), "null"), 256<<20), buf: make([]byte, 1<<20)}
}

func (n *nullMirror) fetch(s *memSession) error {
	n.req.MaxBytes = 16 << 20
	n.req.Partitions = n.req.Partitions[:0]
	for range s.c.partitions {
		n.req.Partitions = append(n.req.Partitions, sdk.FetchPartition{PartitionKey: benchKey(n.next)})
		n.next = (n.next + 1) % s.c.partitions
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := s.Fetch(ctx, &n.req, n)
	if err == context.Canceled {
		return nil
	}
	return err
}

func (n *nullMirror) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	for left := h.RecordBytes; left > 0; {
		k := min(left, len(n.buf)-n.have)
		if _, err := io.ReadFull(records, n.buf[n.have:n.have+k]); err != nil {
			return err
		}
		for b := n.buf[n.have : n.have+k]; len(b) > 0; {
			batch, rest, err := record.Next(b)
			if err != nil {
				break // a batch cut by the end of the buffer is not checked: it favours the null mirror
			}
			if err := batch.VerifyCRC(); err != nil {
				return err
			}
			b = rest
		}
		left -= k
		if n.have += k; n.have == len(n.buf) {
			if err := n.ring.write(n.buf); err != nil {
				return err
			}
			n.have = 0
		}
	}
	return nil
}

// fileTarget is the least a log can be.
type fileTarget struct {
	ring  *ring
	end   int64
	epoch int32
}

// ringBytes gives all files together what one round fills, so that after the
// first round every page exists.
func ringBytes(n int) int64 { return max(128<<10, roundBytes/int64(n)) }

func fileTargets(b *testing.B, n int) (targets []Target) {
	dir := b.TempDir()
	for i := range n {
		targets = append(targets, &fileTarget{ring: newRing(b, filepath.Join(dir, fmt.Sprint(i)), ringBytes(n)), epoch: -1})
	}
	return targets
}

func (f *fileTarget) LogEnd() (int64, int32)             { return f.end, f.epoch }
func (f *fileTarget) HighWatermark() int64               { return f.end }
func (f *fileTarget) AdvanceLogStart(int32, int64) error { return nil }

func (f *fileTarget) MirrorAppend(_ int32, b []byte) (int64, error) {
	if err := f.ring.write(b); err != nil {
		return 0, err
	}
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			return 0, err
		}
		f.end, f.epoch, b = batch.NextOffset(), batch.PartitionLeaderEpoch(), rest
	}
	return f.end, nil
}

// segmentTarget is the real log, without a partition around it. It drops its
// old segments, so that the disk holds a few rounds at most.
type segmentTarget struct {
	log  *segment.Log
	kept int64
}

func segmentTargets(b *testing.B, n int) (targets []Target) {
	store, err := segment.Open(segment.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	for i := range n {
		log, err := store.OpenLog([16]byte{1}, int32(i), segment.Config{SegmentBytes: 64 << 20})
		if err != nil {
			b.Fatal(err)
		}
		targets = append(targets, &segmentTarget{log: log, kept: max(8<<20, 512<<20/int64(n))})
	}
	return targets
}

func (s *segmentTarget) LogEnd() (int64, int32) {
	if e, ok := s.log.LatestEpoch(); ok {
		return s.log.EndOffset(), e
	}
	return s.log.EndOffset(), -1
}

func (s *segmentTarget) HighWatermark() int64               { return s.log.EndOffset() }
func (s *segmentTarget) AdvanceLogStart(int32, int64) error { return nil }

func (s *segmentTarget) MirrorAppend(_ int32, b []byte) (int64, error) {
	if s.log.Size() > s.kept {
		if err := s.log.TruncateFully(s.log.EndOffset()); err != nil {
			return 0, err
		}
	}
	a, err := s.log.Append(b)
	return a.End, err
}
