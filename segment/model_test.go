package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// model is a log as a list of batches, with everything derived by looking at
// all of them.
type model struct {
	batches    []record.Batch // not trimmed at the start
	start, end int64
	hw         int64
	first      int64 // batches that end at or below it were deleted with their segments
}

func (m *model) truncate(end int64) {
	if end >= m.end {
		return
	}
	if end <= m.start {
		m.restart(end)
		return
	}
	for i, b := range m.batches {
		if b.NextOffset() > end {
			if i == 0 || m.batches[i-1].NextOffset() <= m.first {
				m.restart(min(m.start, b.BaseOffset()))
				return
			}
			m.batches = m.batches[:i]
			end = m.batches[i-1].NextOffset()
			break
		}
	}
	m.end, m.start, m.hw = end, min(m.start, end), min(m.hw, end)
}

func (m *model) restart(start int64) {
	*m = model{start: start, end: start, hw: start}
}

func (m *model) visible() []record.Batch {
	for i, b := range m.batches {
		if b.NextOffset() > m.start {
			return m.batches[i:]
		}
	}
	return nil
}

func replay(batches []record.Batch) *producer.Table {
	t := producer.New()
	for _, b := range batches {
		t.Apply(b)
	}
	return t
}

func lso(t *producer.Table, m *model) int64 {
	lso := m.hw
	if first, ok := t.FirstUnstable(m.hw); ok {
		lso = min(lso, max(first, m.start))
	}
	return lso
}

// TestModel runs random operations on a Log and on the model, with small
// segments and a dense index, clean restarts and kills, and compares all
// answers. Run with -rapid.checks=N for more.
//
// In half of the runs all history is gathered in the background, after a gate
// that opens at some time: until then nothing that needs it may answer, and
// then every answer is that of a log that never forgot.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runModel(t) })
}

type modelRun struct {
	t     *rapid.T
	o     Options
	c     Config
	fs    *vfs.MemFS
	s     *Store
	l     *Log
	m     model
	epoch int32
	ts    int64
	seq   map[int64]int32
	gate  chan struct{} // histories are gathered once it is closed
}

func runModel(t *rapid.T) {
	r := &modelRun{t: t, fs: vfs.NewCrashableMem(), seq: map[int64]int32{}, epoch: 1, ts: 10_000}
	r.o = testOptions(r.fs)
	r.o.IndexInterval = rapid.SampledFrom([]int64{1, 300, 1000, 64 << 10}).Draw(t, "interval")
	r.o.tail = rapid.SampledFrom([]int{2, 4, 1024}).Draw(t, "tail")
	r.o.MaxOpenFiles = 8
	if rapid.Bool().Draw(t, "background") {
		r.o.inline = -1
	}
	r.c = Config{SegmentBytes: rapid.SampledFrom([]int64{1, 700, 2500, 1 << 20}).Draw(t, "segment"), RetentionMs: -1, RetentionBytes: -1}
	r.open()
	defer r.close()
	t.Repeat(map[string]func(*rapid.T){
		"append":     func(t *rapid.T) { r.append() },
		"append2":    func(t *rapid.T) { r.append() },
		"append3":    func(t *rapid.T) { r.append() },
		"truncate":   func(t *rapid.T) { r.truncate() },
		"restart":    func(t *rapid.T) { r.restart() },
		"start":      func(t *rapid.T) { r.setStart() },
		"flush":      func(t *rapid.T) { r.flush() },
		"watermark":  func(t *rapid.T) { r.watermark() },
		"reopen":     func(t *rapid.T) { r.reopen() },
		"ready":      func(t *rapid.T) { r.ready() },
		"checkpoint": func(t *rapid.T) { r.s.flusher.checkpoint() },
		"kill":       func(t *rapid.T) { r.kill() },
		"":           func(t *rapid.T) { r.check() },
	})
}

func (r *modelRun) open() {
	var err error
	gate := make(chan struct{})
	r.gate, r.o.gate = gate, func(*Log) { <-gate }
	if r.s, err = Open(r.o); err != nil {
		r.t.Fatal(err)
	}
	if r.l, err = r.s.OpenLog(topicA, 0, r.c); err != nil {
		r.t.Fatal(err)
	}
}

// ready lets the history be gathered and waits for it.
func (r *modelRun) ready() {
	select {
	case <-r.gate:
	default:
		close(r.gate)
	}
	if err := r.l.Wait(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// close closes the store, in the middle of gathering if the gate is shut.
func (r *modelRun) close() error {
	select {
	case <-r.gate:
		return r.s.Close()
	default:
	}
	done := make(chan error, 1)
	go func(s *Store) { done <- s.Close() }(r.s)
	for !r.s.gather.stop.Load() {
		runtime.Gosched()
	}
	close(r.gate)
	return <-done
}

func (r *modelRun) append() {
	t := r.t
	var all []byte
	end := r.m.end
	open := replay(r.m.batches)
	for range rapid.IntRange(1, 4).Draw(t, "batches") {
		if rapid.IntRange(0, 5).Draw(t, "newEpoch") == 0 {
			r.epoch += int32(rapid.IntRange(1, 3).Draw(t, "by"))
		}
		base := end + int64(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 5}).Draw(t, "gap"))
		r.ts += int64(rapid.IntRange(-30, 60).Draw(t, "time"))
		b := r.batch(open, base)
		open.Apply(b)
		r.m.batches = append(r.m.batches, b)
		all, end = append(all, b...), b.NextOffset()
	}
	if _, err := r.l.Append(all); err != nil {
		t.Fatal(err)
	}
	r.m.end = end
}

func (r *modelRun) batch(now *producer.Table, base int64) record.Batch {
	t := r.t
	pid := int64(rapid.IntRange(1, 3).Draw(t, "pid"))
	kind := rapid.SampledFrom([]string{"plain", "plain", "idempotent", "txn", "txn", "end", "reset"}).Draw(t, "kind")
	x := testBatch{base: base, n: rapid.IntRange(1, 4).Draw(t, "n"), epoch: r.epoch, ts: r.ts, value: rapid.SampledFrom([]int{0, 40, 300}).Draw(t, "value"),
		gapLast: int32(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "gapLast"))}
	switch kind {
	case "idempotent", "txn":
		if kind == "txn" {
			pid += 10
		}
		x.pid, x.seq, x.txn = pid, r.seq[pid], kind == "txn"
		b := record.Batch(x.build())
		r.seq[pid] = record.AddSequence(b.LastSequence(), 1)
		return b
	case "end":
		txns := now.Open()
		if len(txns) == 0 {
			break
		}
		o := txns[rapid.IntRange(0, len(txns)-1).Draw(t, "which")]
		kind := record.ControlType(rapid.IntRange(0, 1).Draw(t, "commit"))
		return stamped(record.Marker(kind, o.ProducerID, o.Epoch, 3, r.ts), base, r.epoch)
	case "reset":
		if len(now.Open()) > 0 {
			break // a stop ends transactions first
		}
		clear(r.seq)
		return stamped(record.PIDReset("source", r.ts), base, r.epoch)
	}
	return x.build()
}

func (r *modelRun) truncate() {
	end := rapid.Int64Range(0, r.m.end+2).Draw(r.t, "end")
	if rapid.Bool().Draw(r.t, "near") {
		end = max(0, r.m.end-rapid.Int64Range(0, 12).Draw(r.t, "back"))
	}
	r.ready()
	r.m.first = r.l.Segments()[0].Base
	if err := r.l.Truncate(end); err != nil {
		r.t.Fatal(err)
	}
	r.m.truncate(end)
}

func (r *modelRun) restart() {
	if rapid.IntRange(0, 3).Draw(r.t, "really") != 0 {
		return
	}
	r.ready()
	start := rapid.Int64Range(0, r.m.end+50).Draw(r.t, "start")
	if err := r.l.TruncateFully(start); err != nil {
		r.t.Fatal(err)
	}
	r.m.restart(start)
}

func (r *modelRun) setStart() {
	start := rapid.Int64Range(0, r.m.end).Draw(r.t, "start")
	err := r.l.SetStartOffset(start)
	if errors.Is(err, ErrRebuilding) && r.l.Ready() != nil { // a segment would go, and nobody has read it yet
		r.ready()
		err = r.l.SetStartOffset(start)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.m.start = max(r.m.start, start)
	r.m.hw = max(r.m.hw, r.m.start) // its caller never deletes above the high watermark
	r.l.SetHighWatermark(r.m.hw)
}

func (r *modelRun) flush() {
	if err := flush(r.l); err != nil {
		r.t.Fatal(err)
	}
	if got := r.l.DurableEnd(); got != r.m.end {
		r.t.Fatalf("durable end %d after flush, want %d", got, r.m.end)
	}
}

func (r *modelRun) watermark() {
	r.m.hw = rapid.Int64Range(r.m.hw, r.m.end).Draw(r.t, "hw")
	r.l.SetHighWatermark(r.m.hw)
}

func (r *modelRun) reopen() {
	if err := r.close(); err != nil {
		r.t.Fatal(err)
	}
	r.loseIndex()
	r.open()
	if got := r.l.HighWatermark(); got != r.m.hw {
		r.t.Fatalf("high watermark %d after a clean restart, want %d", got, r.m.hw)
	}
}

// kill reopens what a killed process leaves: every write is there, the index'
// memory is not.
func (r *modelRun) kill() {
	next := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	_ = r.close()
	r.fs, r.o.FS = next, next
	r.loseIndex()
	r.open()
	if got := r.l.HighWatermark(); got > r.m.hw {
		r.t.Fatalf("high watermark %d after a kill, was %d", got, r.m.hw)
	}
	r.l.SetHighWatermark(r.m.hw)
}

// loseIndex removes the index, sometimes.
func (r *modelRun) loseIndex() {
	if rapid.IntRange(0, 2).Draw(r.t, "loseIndex") == 0 {
		if err := r.fs.RemoveAll(r.fs.PathJoin(r.o.Dir, indexDir)); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *modelRun) check() {
	t, l, m := r.t, r.l, &r.m
	if l.StartOffset() != m.start || l.EndOffset() != m.end {
		t.Fatalf("log is [%d, %d), want [%d, %d)", l.StartOffset(), l.EndOffset(), m.start, m.end)
	}
	if l.HighWatermark() != m.hw || l.DurableEnd() > m.end {
		t.Fatalf("high watermark %d, want %d; durable end %d of %d", l.HighWatermark(), m.hw, l.DurableEnd(), m.end)
	}
	visible := m.visible()
	var want []byte
	for _, b := range visible {
		want = append(want, b...)
	}
	if got := content(t, l, m.start, rapid.SampledFrom([]int{1, 400, 5000, 1 << 20}).Draw(t, "max")); !bytes.Equal(got, want) {
		t.Fatalf("content differs: %d bytes, want %d", len(got), len(want))
	}
	r.checkReads(visible)
	if err := l.Ready(); err != nil {
		r.checkUnready(err)
		return
	}
	r.checkEpochs(visible)
	r.checkProducers()
	r.checkTimes(visible)
}

// checkUnready: what needs the history says so.
func (r *modelRun) checkUnready(err error) {
	t, l, m := r.t, r.l, &r.m
	if !errors.Is(err, ErrRebuilding) {
		t.Fatal(err)
	}
	if got := l.LastStable(m.hw); got != m.start {
		t.Fatalf("last stable offset %d before anything is known, log start is %d", got, m.start)
	}
	b := testBatch{base: m.end, n: 1, epoch: r.epoch, pid: 1, seq: 9}.build()
	if _, err := l.CheckProducer(b); !errors.Is(err, ErrRebuilding) {
		t.Fatalf("producer check: %v", err)
	}
	if _, err := l.CheckProducer(testBatch{base: m.end, n: 1, epoch: r.epoch}.build()); err != nil {
		t.Fatalf("producer check without an id: %v", err)
	}
	if _, _, _, _, err := l.OffsetForTime(r.ts); !errors.Is(err, ErrRebuilding) {
		t.Fatalf("offset for time: %v", err)
	}
	if _, err := l.Retain(time.Unix(0, 0), m.hw); !errors.Is(err, ErrRebuilding) {
		t.Fatalf("retention: %v", err)
	}
}

func (r *modelRun) checkReads(visible []record.Batch) {
	t, l, m := r.t, r.l, &r.m
	if len(visible) == 0 {
		return
	}
	for range 3 {
		offset := rapid.Int64Range(m.start, m.end).Draw(t, "offset")
		limit := rapid.Int64Range(m.start, m.end).Draw(t, "limit")
		maxBytes := rapid.SampledFrom([]int{0, 10, 300, 900, 1 << 20}).Draw(t, "maxBytes")
		atLeastOne := rapid.Bool().Draw(t, "atLeastOne")
		v, err := l.Read(offset, maxBytes, limit, atLeastOne)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, v.N)
		if v.N > 0 {
			if _, err := v.ReadAt(p, 0); err != nil {
				t.Fatal(err)
			}
		}
		v.Release()
		if err := checkView(p, v, visible, offset, limit, maxBytes, atLeastOne); err != nil {
			t.Fatalf("Read(%d, %d, %d, %v): %v", offset, maxBytes, limit, atLeastOne, err)
		}
	}
}

// checkView says whether a view is a legal answer: the batches from the one
// that holds the offset, as many as one segment, the limit and the size allow.
func checkView(p []byte, v View, all []record.Batch, offset, limit int64, maxBytes int, atLeastOne bool) error {
	i := 0
	for i < len(all) && all[i].NextOffset() <= offset {
		i++
	}
	fits := i < len(all) && all[i].NextOffset() <= limit && (atLeastOne || len(all[i]) <= maxBytes)
	if !fits {
		if len(p) != 0 {
			return fmt.Errorf("%d bytes, want none", len(p))
		}
		return nil
	}
	if len(p) == 0 {
		return fmt.Errorf("nothing, want the batch at %d", all[i].BaseOffset())
	}
	if len(p) > maxBytes && len(p) != len(all[i]) {
		return fmt.Errorf("%d bytes", len(p))
	}
	for n := 0; len(p) > 0; n++ {
		b := all[i+n]
		if !bytes.HasPrefix(p, b) {
			return fmt.Errorf("batch %d of the view differs from the batch at %d", n, b.BaseOffset())
		}
		if b.NextOffset() > limit {
			return fmt.Errorf("batch at %d reaches above the limit", b.BaseOffset())
		}
		if p = p[len(b):]; len(p) == 0 && (v.End < b.NextOffset() || i+n+1 < len(all) && v.End > all[i+n+1].BaseOffset()) {
			return fmt.Errorf("view ends at %d, its last batch at %d", v.End, b.NextOffset())
		}
	}
	return nil
}

func (r *modelRun) checkEpochs(visible []record.Batch) {
	latest := int32(-1)
	for i, b := range visible {
		e := b.PartitionLeaderEpoch()
		at := max(b.BaseOffset(), r.m.start)
		if got, ok := r.l.EpochAt(at); !ok || got != e {
			r.t.Fatalf("epoch at %d is %d %v, want %d", at, got, ok, e)
		}
		end := r.m.end
		for _, next := range visible[i:] {
			if next.PartitionLeaderEpoch() > e {
				end = next.BaseOffset()
				break
			}
		}
		if gotE, gotEnd := r.l.EpochEnd(e); gotE != e || gotEnd != end {
			r.t.Fatalf("epoch %d ends at %d of %d, want %d", e, gotEnd, gotE, end)
		}
		latest = e
	}
	if got, _ := r.l.LatestEpoch(); len(visible) > 0 && got != latest {
		r.t.Fatalf("latest epoch %d, want %d", got, latest)
	}
}

func (r *modelRun) checkProducers() {
	t, l, m := r.t, r.l, &r.m
	full := replay(m.batches)
	got := l.LastStable(m.hw)
	if got != lso(full, m) {
		t.Fatalf("last stable offset %d, want %d (high watermark %d)", got, lso(full, m), m.hw)
	}
	if got, want := fmt.Sprint(l.OpenTxns()), fmt.Sprint(full.Open()); got != want {
		t.Fatalf("open transactions %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(l.Aborted(m.start, m.end)), fmt.Sprint(full.AbortedIn(m.start, m.end)); got != want {
		t.Fatalf("aborted transactions %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(l.Producers()), fmt.Sprint(full.Producers()); got != want {
		t.Fatalf("producers %s, want %s", got, want)
	}
}

func (r *modelRun) checkTimes(visible []record.Batch) {
	t := r.t
	ts := rapid.Int64Range(r.ts-100, r.ts+10).Draw(t, "ts")
	wantO, wantT := int64(-1), int64(-1)
	maxO, maxT := int64(-1), int64(-1)
	for _, b := range visible {
		_ = b.Records(func(rec record.Record) error {
			o, at := b.BaseOffset()+int64(rec.OffsetDelta), b.BaseTimestamp()+rec.TimestampDelta
			if o < r.m.start {
				return nil
			}
			if at >= ts && wantO < 0 {
				wantO, wantT = o, at
			}
			if at > maxT {
				maxO, maxT = o, at
			}
			return nil
		})
	}
	o, at, _, ok, err := r.l.OffsetForTime(ts)
	if err != nil || ok != (wantO >= 0) || o != wantO || at != wantT {
		t.Fatalf("offset for time %d is %d at %d (%v, %v), want %d at %d", ts, o, at, ok, err, wantO, wantT)
	}
	o, at, _, ok = r.l.MaxTimestamp()
	if ok != (maxO >= 0) || o != maxO || at != maxT {
		t.Fatalf("max timestamp %d at %d (%v), want %d at %d", at, o, ok, maxT, maxO)
	}
}
