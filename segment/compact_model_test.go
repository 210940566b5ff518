package segment

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// TestCompactModel runs random appends, transactions, truncations, restarts and
// kills around compactions, and holds each round against what a reader of all
// batches would say has to stay. The index is thrown away after each, and what
// is rebuilt from the files must answer as before. -rapid.checks=N for more.
func TestCompactModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runCompactModel(t) })
}

// modelTxn is a transaction as the one who wrote it knows it.
type modelTxn struct {
	pid    int64
	bases  []int64 // base offsets of its batches
	marker int64   // -1: open
	abort  bool
}

type compactRun struct {
	t     *rapid.T
	o     Options
	c     Config
	fs    *vfs.MemFS
	s     *Store
	l     *Log
	hw    int64
	now   int64
	epoch int32
	txns  []modelTxn
	// forgot: segments that said something of epochs were deleted by retention.
	forgot bool
	value  int
}

func runCompactModel(t *rapid.T) {
	r := &compactRun{t: t, fs: vfs.NewCrashableMem(), epoch: 1, now: 1000}
	r.o = testOptions(r.fs)
	r.o.IndexInterval = rapid.SampledFrom([]int64{1, 300, 64 << 10}).Draw(t, "interval")
	r.c = Config{
		SegmentBytes: rapid.SampledFrom([]int64{1, 400, 1200}).Draw(t, "segment"), RetentionMs: -1, RetentionBytes: -1, Compact: true,
		DeleteRetentionMs:  rapid.SampledFrom([]int64{0, 100}).Draw(t, "deleteRetention"),
		MinCompactionLagMs: rapid.SampledFrom([]int64{0, 0, 50}).Draw(t, "minLag"),
	}
	r.open()
	defer func() { _ = r.s.Close() }()
	t.Repeat(map[string]func(*rapid.T){
		"append":   func(t *rapid.T) { r.append() },
		"append2":  func(t *rapid.T) { r.append() },
		"end":      func(t *rapid.T) { r.endTxn() },
		"reset":    func(t *rapid.T) { r.reset() },
		"compact":  func(t *rapid.T) { r.compact(false) },
		"compact2": func(t *rapid.T) { r.compact(false) },
		"cut off":  func(t *rapid.T) { r.compact(true) },
		"truncate": func(t *rapid.T) { r.truncate() },
		"start":    func(t *rapid.T) { r.setStart() },
		"time":     func(t *rapid.T) { r.now += int64(rapid.IntRange(1, 120).Draw(t, "ms")) },
		"reopen":   func(t *rapid.T) { r.reopen() },
		"kill":     func(t *rapid.T) { r.kill() },
	})
}

func (r *compactRun) open() {
	var err error
	if r.s, err = Open(r.o); err != nil {
		r.t.Fatal(err)
	}
	if r.l, err = r.s.OpenLog(topicA, 0, r.c); err != nil {
		r.t.Fatal(err)
	}
}

func (r *compactRun) producer(pid int64) producer.Producer {
	for _, p := range r.l.Producers() {
		if p.ProducerID == pid {
			return p
		}
	}
	return producer.Producer{ProducerID: pid, Epoch: 0, LastSequence: -1, TxnFirst: -1}
}

func (r *compactRun) append() {
	t := r.t
	for range rapid.IntRange(1, 4).Draw(t, "batches") {
		if rapid.IntRange(0, 7).Draw(t, "newEpoch") == 0 {
			r.epoch++
		}
		b := keyedBatch{base: r.l.EndOffset(), epoch: r.epoch, codec: rapid.SampledFrom(allCodecs).Draw(t, "codec")}
		// 0: no producer, 1 and 2 idempotent, 3 to 5 transactional.
		if pid := int64(rapid.IntRange(0, 5).Draw(t, "pid")); pid > 0 {
			p := r.producer(pid)
			b.pid, b.pepoch, b.seq, b.txn = pid, p.Epoch, p.LastSequence+1, pid >= 3
		}
		for range rapid.IntRange(1, 3).Draw(t, "records") {
			r.value++
			rec := kv{key: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "key"), value: fmt.Sprint(r.value), ts: r.now + int64(rapid.IntRange(-40, 0).Draw(t, "ts"))}
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				rec.value = ""
			case 3:
				rec.key = ""
			}
			b.recs = append(b.recs, rec)
		}
		if _, err := r.l.Append(b.build(t)); err != nil {
			t.Fatal(err)
		}
		if b.txn {
			r.note(b.pid, b.base)
		}
	}
	if rapid.Bool().Draw(t, "flush") {
		r.flush()
	}
}

func (r *compactRun) note(pid, base int64) {
	for i := range r.txns {
		if x := &r.txns[i]; x.pid == pid && x.marker < 0 {
			x.bases = append(x.bases, base)
			return
		}
	}
	r.txns = append(r.txns, modelTxn{pid: pid, bases: []int64{base}, marker: -1})
}

func (r *compactRun) endTxn() {
	t := r.t
	open := r.l.OpenTxns()
	if len(open) == 0 {
		t.Skip() // nothing to end: rapid draws another action
	}
	x := rapid.SampledFrom(open).Draw(t, "txn")
	kind, epoch := record.Commit, x.Epoch
	if rapid.Bool().Draw(t, "abort") {
		kind = record.Abort
	}
	if rapid.IntRange(0, 3).Draw(t, "bump") == 0 {
		epoch++
	}
	r.end(x.ProducerID, kind, epoch)
}

func (r *compactRun) end(pid int64, kind record.ControlType, epoch int16) {
	at := r.l.EndOffset()
	if _, err := r.l.Append(stamped(record.Marker(kind, pid, epoch, 7, r.now), at, r.epoch)); err != nil {
		r.t.Fatal(err)
	}
	for i := range r.txns {
		if x := &r.txns[i]; x.pid == pid && x.marker < 0 {
			x.marker, x.abort = at, kind == record.Abort
		}
	}
}

// reset is what a stop of mirroring writes.
func (r *compactRun) reset() {
	for _, x := range r.l.OpenTxns() {
		r.end(x.ProducerID, record.Abort, x.Epoch)
	}
	if _, err := r.l.Append(stamped(record.PIDReset("source", r.now), r.l.EndOffset(), r.epoch)); err != nil {
		r.t.Fatal(err)
	}
	// A round between the reset and its cut would let go of producers that the cut
	// brings back. A stop is told only once all have the reset.
	if err := flush(r.l); err != nil {
		r.t.Fatal(err)
	}
	r.hw = r.l.EndOffset()
	r.l.SetHighWatermark(r.hw)
}

func (r *compactRun) flush() {
	if err := flush(r.l); err != nil {
		r.t.Fatal(err)
	}
	r.hw = max(r.hw, int64(rapid.IntRange(int(r.hw), int(r.l.EndOffset())).Draw(r.t, "hw")))
	r.l.SetHighWatermark(r.hw)
}

func (r *compactRun) truncate() {
	end := int64(rapid.IntRange(int(r.hw), int(r.l.EndOffset())).Draw(r.t, "cut"))
	if err := r.l.Truncate(end); err != nil {
		r.t.Fatal(err)
	}
	r.cutModel()
}

// cutModel forgets what lies behind the log end.
func (r *compactRun) cutModel() {
	end := r.l.EndOffset()
	r.hw = min(r.hw, end)
	if segs := r.l.Segments(); len(segs) > 1 && segs[1].Base <= r.l.StartOffset() {
		r.forgot = true // wholly below the log start: the next recovery removes it, and its epochs
	}
	kept := r.txns[:0]
	for _, x := range r.txns {
		x.bases = slices.DeleteFunc(x.bases, func(b int64) bool { return b >= end })
		if x.marker >= end {
			x.marker, x.abort = -1, false
		}
		if len(x.bases) > 0 {
			kept = append(kept, x)
		}
	}
	r.txns = kept
	if e, ok := r.l.LatestEpoch(); ok {
		r.epoch = max(r.epoch, e)
	}
}

func (r *compactRun) setStart() {
	lso := r.l.LastStable(r.hw)
	if lso < r.l.StartOffset() {
		r.t.Skip() // the start may not pass the last stable offset: rapid draws another action
	}
	first := r.l.Segments()[0].Base
	if err := r.l.SetStartOffset(int64(rapid.IntRange(int(r.l.StartOffset()), int(lso)).Draw(r.t, "start"))); err != nil {
		r.t.Fatal(err)
	}
	if err := r.l.putMark(true, -1); err != nil { // a power cut may take an unsynced one back
		r.t.Fatal(err)
	}
	r.forgot = r.forgot || r.l.Segments()[0].Base != first
}

func (r *compactRun) reopen() {
	if err := r.s.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open()
	r.cutModel()
}

func (r *compactRun) kill() {
	r.fs = r.clone(rapid.SampledFrom([]int{0, 50, 100}).Draw(r.t, "percent"))
	r.goOn()
}

// goOn opens the file system as a crash left it.
func (r *compactRun) goOn() {
	_ = r.s.Close()
	r.o.FS = r.fs
	r.open()
	r.cutModel()
}

func (r *compactRun) clone(percent int) *vfs.MemFS {
	return r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(r.value), 1))})
}

// aborted is the transaction of a batch, if it was aborted.
func (r *compactRun) aborted(b record.Batch) *modelTxn {
	for i := range r.txns {
		if x := &r.txns[i]; x.abort && slices.Contains(x.bases, b.BaseOffset()) {
			return x
		}
	}
	return nil
}

// fileBatches are all batches in the files, also those below the log start.
func fileBatches(t fataler, l *Log) []record.Batch {
	t.Helper()
	l.mu.RLock()
	segments := l.mu.segments
	l.mu.RUnlock()
	var list []record.Batch
	for _, s := range segments {
		if s.size == 0 {
			continue
		}
		if err := eachBatch(l, s, func(b record.Batch) error {
			list = append(list, append(record.Batch(nil), b...))
			return b.VerifyCRC()
		}); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return list
}

// limit is the end of what may be compacted, as the rules have it.
func (r *compactRun) limit() int64 {
	l := r.l
	stable := min(r.hw, l.DurableEnd())
	for _, x := range r.txns {
		if x.marker < 0 || x.marker >= r.hw {
			stable = min(stable, x.bases[0])
		}
	}
	segments := l.Segments()
	end := segments[0].Base
	from := l.cleanedUpTo()
	for i, s := range segments[:len(segments)-1] {
		if s.End > stable {
			break
		}
		if r.c.MinCompactionLagMs > 0 && s.End > max(from, l.StartOffset()) {
			young := false
			for _, f := range recordsOf(r.t, segmentBatches(r.t, l, i)) {
				young = young || f.ts > r.now-r.c.MinCompactionLagMs
			}
			if young {
				break
			}
		}
		end = s.End
	}
	return end
}

func segmentBatches(t fataler, l *Log, i int) []record.Batch {
	t.Helper()
	l.mu.RLock()
	s := l.mu.segments[i]
	l.mu.RUnlock()
	var list []record.Batch
	if s.size == 0 {
		return nil
	}
	if err := eachBatch(l, s, func(b record.Batch) error {
		list = append(list, append(record.Batch(nil), b...))
		return nil
	}); err != nil {
		t.Fatalf("%v", err)
	}
	return list
}

// expect says what a round up to end has to leave of batches.
func (r *compactRun) expect(batches []record.Batch, limit, end int64) []found {
	known := map[int64]bool{}
	for _, p := range r.l.Producers() {
		known[p.ProducerID] = p.CoordinatorEpoch >= 0
	}
	newest := map[string]int64{}
	for _, b := range batches {
		if b.BaseOffset() < end && !b.IsControl() && r.aborted(b) == nil {
			for _, f := range recordsOf(r.t, []record.Batch{b}) {
				if f.offset < end {
					newest[f.key] = f.offset
				}
			}
		}
	}
	var list []found
	for i, b := range batches {
		horizon := b.HasDeleteHorizon() && b.BaseTimestamp() <= r.now
		x := r.aborted(b)
		for _, f := range recordsOf(r.t, []record.Batch{b}) {
			switch {
			case b.BaseOffset() >= end || f.offset >= end:
			case b.IsControl():
				if horizon && !r.markerNeeded(batches, i, end, known) {
					continue
				}
			case x != nil && x.marker < limit:
				continue
			case x != nil:
			case f.key == "", f.offset < newest[f.key], f.value == "" && horizon:
				continue
			}
			list = append(list, f)
		}
	}
	return list
}

// markerNeeded says that something before the control batch, or its producer's
// state, still needs it.
func (r *compactRun) markerNeeded(batches []record.Batch, i int, end int64, known map[int64]bool) bool {
	m := batches[i]
	kind, _, err := m.Control()
	if err != nil {
		r.t.Fatal(err)
	}
	if kind == record.MirrorPIDReset {
		for j := i - 1; j >= 0; j-- {
			if k, _, err := batches[j].Control(); err == nil && k == record.MirrorPIDReset {
				return false
			}
			if batches[j].HasProducerID() {
				return true
			}
		}
		return false
	}
	for j := i - 1; j >= 0; j-- {
		b := batches[j]
		if b.IsControl() && b.ProducerID() == m.ProducerID() {
			break
		}
		if b.IsTransactional() && b.ProducerID() == m.ProducerID() {
			return true
		}
	}
	if !known[m.ProducerID()] {
		return false
	}
	for _, b := range batches[i+1:] {
		if b.BaseOffset() < end && b.IsControl() && b.ProducerID() == m.ProducerID() {
			return false
		}
	}
	return true
}

// state is the value of each key that read-committed readers end up with.
func state(records []found) map[string]string {
	m := map[string]string{}
	for _, f := range records {
		if f.value == "" {
			delete(m, f.key)
		} else if f.key != "" {
			m[f.key] = f.value
		}
	}
	return m
}

// readCommitted reads the log as a consumer does.
func readCommitted(t fataler, l *Log, hw int64) []found {
	t.Helper()
	lso := l.LastStable(hw)
	aborts := l.Aborted(l.StartOffset(), lso)
	slices.SortFunc(aborts, func(a, b producer.AbortedTxn) int { return int(a.FirstOffset - b.FirstOffset) })
	skip := map[int64]bool{}
	var list []found
	for _, b := range logBatches(t, l) {
		if b.NextOffset() > lso {
			break
		}
		for len(aborts) > 0 && aborts[0].FirstOffset <= b.LastOffset() {
			skip[aborts[0].ProducerID] = true
			aborts = aborts[1:]
		}
		if b.IsControl() {
			if kind, _, err := b.Control(); err == nil && kind == record.Abort {
				delete(skip, b.ProducerID())
			}
			continue
		}
		if b.IsTransactional() && skip[b.ProducerID()] {
			continue
		}
		list = append(list, recordsOf(t, []record.Batch{b})...)
	}
	return slices.DeleteFunc(list, func(f found) bool { return f.offset < l.StartOffset() })
}

// logAnswers are what a log says beside its records.
type logAnswers struct {
	start, end, lso int64
	epochs          string
	open, producers string
	committed       []found
}

func logAnswersOf(t fataler, l *Log, hw int64) logAnswers {
	t.Helper()
	a := logAnswers{start: l.StartOffset(), end: l.EndOffset(), lso: l.LastStable(hw), epochs: fmt.Sprint(l.Epochs())}
	for _, x := range l.OpenTxns() {
		a.open += fmt.Sprintf("%d/%d from %d ", x.ProducerID, x.Epoch, x.First)
	}
	list := l.Producers()
	for i := range list {
		list[i].LastTimestamp = 0 // falls with the records that are gone, as in Kafka
	}
	a.producers, a.committed = fmt.Sprint(list), readCommitted(t, l, hw)
	return a
}

func (r *compactRun) compact(cutOff bool) {
	t := r.t
	r.flush()
	before, answered, limit := fileBatches(t, r.l), logAnswersOf(t, r.l, r.hw), r.limit()
	from, start := r.l.cleanedUpTo(), r.l.StartOffset()
	o := CompactOptions{Memory: slotSize * rapid.SampledFrom([]int64{1, 3, 4, 1000}).Draw(t, "slots")}
	crashAt, percent := -1, 0
	if cutOff {
		crashAt, percent = rapid.IntRange(0, 30).Draw(t, "point"), rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent")
	}
	var crashed *vfs.MemFS
	points := 0
	restore := invariants.SetFault(func(string) {
		if points == crashAt {
			crashed = r.clone(percent)
		}
		points++
	})
	stats, err := r.l.Compact(context.Background(), ms(r.now), r.hw, o)
	restore()
	if err != nil {
		t.Fatal(err)
	}
	if stats.End > max(limit, from) || stats.End < limit && stats.End <= max(from, start) && limit > max(from, start) {
		t.Fatalf("round from %d ended at %d, limit %d", from, stats.End, limit)
	}
	visible := func(list []found) []found {
		return slices.DeleteFunc(list, func(f found) bool { return f.offset < start })
	}
	after := fileBatches(t, r.l)
	got, want := visible(recordsOf(t, after)), visible(r.expect(before, limit, stats.End))
	if fmt.Sprint(got) != fmt.Sprint(want) || !slices.Equal(got, want) {
		t.Fatalf("round from %d to %d at %d, log start %d\nbefore %v\ngot    %v\nwant   %v", from, stats.End, r.now, start, recordsOf(t, before), got, want)
	}
	r.same("compacted", r.l, answered, false)
	if crashed != nil {
		r.fs = crashed
		r.goOn()
		r.same("killed in a round", r.l, answered, r.forgot)
	}
	r.rebuilt(answered)
}

// same compares what a log answers.
func (r *compactRun) same(what string, l *Log, want logAnswers, forgot bool) {
	r.t.Helper()
	got := logAnswersOf(r.t, l, r.hw)
	if forgot && got.start == got.end {
		got.epochs = want.epochs // no batch is left to tell of any
	}
	if fmt.Sprint(state(got.committed)) != fmt.Sprint(state(want.committed)) {
		r.t.Fatalf("%s: committed state %v, was %v\nrecords %v\nwere    %v", what, state(got.committed), state(want.committed), got.committed, want.committed)
	}
	for _, f := range got.committed {
		if !slices.Contains(want.committed, f) {
			r.t.Fatalf("%s: record %v appeared", what, f)
		}
	}
	got.committed, want.committed = nil, nil
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Fatalf("%s: log answers\n%+v, before\n%+v\nbatches %v", what, got, want, describe(fileBatches(r.t, l)))
	}
}

func describe(batches []record.Batch) (list []string) {
	for _, b := range batches {
		list = append(list, fmt.Sprintf("[%d-%d epoch %d pid %d/%d seq %d txn %v control %v n %d]", b.BaseOffset(), b.LastOffset(), b.PartitionLeaderEpoch(), b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), b.IsTransactional(), b.IsControl(), b.NumRecords()))
	}
	return list
}

// rebuilt opens a copy without its index.
func (r *compactRun) rebuilt(want logAnswers) {
	fs := r.clone(100)
	o := r.o
	o.FS = fs
	if err := fs.RemoveAll(fs.PathJoin(o.Dir, indexDir)); err != nil {
		r.t.Fatal(err)
	}
	s, err := Open(o)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	l, err := s.OpenLog(topicA, 0, r.c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.same("rebuilt without an index", l, want, r.forgot)
}
