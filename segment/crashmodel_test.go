package segment

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// logState is what a log may be: its batches, of which the unflushed end may be
// missing after a crash.
type logState struct {
	batches []record.Batch // also those that lie below the start
	// original is what the batches were before compaction took some. Epochs may be
	// known from them.
	original []record.Batch
	// compacted says that they went by the rules of compaction: the epochs are kept,
	// and what is known of producers but for the time of their last batch.
	compacted  bool
	start, end int64
	origin     int64 // the log's end when it has no batch
}

// bounded says how little of a state a crash may leave.
type bounded struct {
	logState
	floor      int64 // least log end
	startFloor int64 // least log start
}

// expected is everything a log may be after a crash.
type expected struct {
	states         []bounded
	hwFloor, hwMax int64
	live           bool // the log was not recovered: nothing may be missing
	noIndex        bool // the index was taken away: what only it knew may be missing
}

func (s logState) append(batches ...record.Batch) logState {
	s.batches = append(s.batches[:len(s.batches):len(s.batches)], batches...)
	if s.original != nil {
		s.original = append(s.original[:len(s.original):len(s.original)], batches...)
	}
	s.end = s.batches[len(s.batches)-1].NextOffset()
	return s
}

// upTo is the state without the batches that reach above end.
func (s logState) upTo(end int64) logState {
	below := func(list []record.Batch) []record.Batch {
		n := len(list)
		for n > 0 && list[n-1].NextOffset() > end {
			n--
		}
		return list[:n:n]
	}
	s.batches = below(s.batches)
	if s.original != nil {
		s.original = below(s.original)
	}
	if s.end = s.origin; len(s.batches) > 0 {
		s.end = s.batches[len(s.batches)-1].NextOffset()
	}
	return s
}

// from is the state without the batches that end at or below base.
func (s logState) from(base int64) logState {
	above := func(list []record.Batch) []record.Batch {
		i := 0
		for i < len(list) && list[i].NextOffset() <= base {
			i++
		}
		return list[i:]
	}
	if s.batches = above(s.batches); len(s.batches) == 0 {
		s.origin = s.end
	}
	if s.original != nil {
		s.original = above(s.original)
	}
	return s
}

// truncate is what Truncate makes of it; first is the base of the oldest segment.
func (s logState) truncate(end, first int64) (after logState, restarted bool) {
	if end >= s.end {
		return s, false
	}
	empty := func(at int64) logState { return logState{start: at, end: at, origin: at} }
	if end <= s.start {
		return empty(end), true
	}
	for i, b := range s.batches {
		if b.NextOffset() <= end {
			continue
		}
		if i == 0 || s.batches[i-1].NextOffset() <= first {
			return empty(min(s.start, b.BaseOffset())), true
		}
		break
	}
	s = s.upTo(end)
	s.start = min(s.start, s.end)
	return s, false
}

// explain finds the state in which a log is, or says why it is in none.
func (e expected) explain(l *Log) (found logState, err error) {
	var why []string
	for i, b := range e.states {
		s, err := b.explains(l, e)
		if err == nil {
			return s, nil
		}
		why = append(why, fmt.Sprintf("state %d [%d, %d): %v", i, b.start, b.end, err))
	}
	return found, fmt.Errorf("log is [%d, %d), high watermark %d: %s", l.StartOffset(), l.EndOffset(), l.HighWatermark(), strings.Join(why, "; "))
}

// failed is what a helper that takes a testing.TB ends with here.
type failed string

type panicker struct{}

func (panicker) Helper()                           {}
func (panicker) Fatalf(format string, args ...any) { panic(failed(fmt.Sprintf(format, args...))) }

func (b bounded) explains(l *Log, e expected) (s logState, err error) {
	defer func() {
		if f, ok := recover().(failed); ok {
			err = errors.New(string(f))
		}
	}()
	start, end, hw := l.StartOffset(), l.EndOffset(), l.HighWatermark()
	s = b.upTo(end)
	if s.end < start && start == end && start <= b.start {
		// The start had been moved into a batch, durably, and the power took the batch:
		// a log does not end below its start, so it goes on there, empty.
		s = logState{start: start, end: end, origin: end}
	}
	s.start = start
	switch {
	case s.end != end:
		return s, fmt.Errorf("no batch ends at %d", end)
	case end < b.floor:
		return s, fmt.Errorf("offsets below %d were durable", b.floor)
	case start > b.start || start < min(b.startFloor, end):
		return s, fmt.Errorf("start must be in [%d, %d]", b.startFloor, b.start)
	case hw > end || hw > max(e.hwMax, start) || hw < min(e.hwFloor, end):
		return s, fmt.Errorf("high watermark must be in [%d, %d]", e.hwFloor, e.hwMax)
	case l.DurableEnd() > end || !e.live && l.DurableEnd() != end:
		return s, fmt.Errorf("durable end is %d", l.DurableEnd())
	}
	visible := s.visible()
	if got, want := content(panicker{}, l, start, 1000), bytes.Join(asBytes(visible), nil); !bytes.Equal(got, want) {
		return s, fmt.Errorf("%d bytes of content, want %d, or others", len(got), len(want))
	}
	for _, check := range []func(*Log, []record.Batch, expected) error{s.checkSegments, s.checkReads, s.checkEpochs, s.checkProducers, s.checkTimes, s.checkCommitted} {
		if err := check(l, visible, e); err != nil {
			return s, err
		}
	}
	return s, nil
}

func asBytes(batches []record.Batch) (list [][]byte) {
	for _, b := range batches {
		list = append(list, b)
	}
	return list
}

func (s logState) visible() []record.Batch {
	for i, b := range s.batches {
		if b.NextOffset() > s.start {
			return s.batches[i:]
		}
	}
	return nil
}

// checkSegments: no hole between segments, and nothing wholly below the start
// that a deletion should have taken.
func (s logState) checkSegments(l *Log, _ []record.Batch, _ expected) error {
	list := l.Segments()
	for i := 1; i < len(list); i++ {
		if list[i].Base != list[i-1].End {
			return fmt.Errorf("segment %d begins at %d, the one before it ends at %d", i, list[i].Base, list[i-1].End)
		}
	}
	return nil
}

// checkReads reads at every offset, through the index.
func (s logState) checkReads(l *Log, visible []record.Batch, _ expected) error {
	i := 0
	for o := s.start; o <= s.end; o++ {
		for i < len(visible) && visible[i].NextOffset() <= o {
			i++
		}
		v, err := l.Read(o, 1, s.end, true)
		if err != nil {
			return fmt.Errorf("read at %d: %w", o, err)
		}
		p := make([]byte, v.N)
		if v.N > 0 {
			_, err = v.ReadAt(p, 0)
		}
		v.Release()
		switch {
		case err != nil:
			return fmt.Errorf("read at %d: %w", o, err)
		case i == len(visible) && v.N > 0:
			return fmt.Errorf("read at %d gives %d bytes, want none", o, v.N)
		case i < len(visible) && !bytes.Equal(p, visible[i]):
			return fmt.Errorf("read at %d gives another batch than the one at %d", o, visible[i].BaseOffset())
		}
	}
	for _, o := range []int64{s.start - 1, s.end + 1} {
		if v, err := l.Read(o, 1, s.end, true); !errors.Is(err, ErrOutOfRange) {
			v.Release()
			return fmt.Errorf("read at %d: %v, want out of range", o, err)
		}
	}
	return nil
}

// checkEpochs compares where epochs begin and end.
func (s logState) checkEpochs(l *Log, visible []record.Batch, _ expected) error {
	err := s.epochsOf(l, visible)
	if err != nil && s.original != nil {
		full := s
		full.batches = s.original
		return full.epochsOf(l, full.visible())
	}
	return err
}

func (s logState) epochsOf(l *Log, visible []record.Batch) error {
	latest := int32(-1)
	for i, b := range visible {
		e := b.PartitionLeaderEpoch()
		at := max(b.BaseOffset(), s.start)
		if got, ok := l.EpochAt(at); !ok || got != e {
			return fmt.Errorf("epoch at %d is %d %v, want %d", at, got, ok, e)
		}
		end := s.end
		for _, next := range visible[i:] {
			if next.PartitionLeaderEpoch() > e {
				end = next.BaseOffset()
				break
			}
		}
		if gotE, gotEnd := l.EpochEnd(e); gotE != e || gotEnd != end {
			return fmt.Errorf("epoch %d ends at %d of %d, want %d", e, gotEnd, gotE, end)
		}
		latest = e
	}
	got, _ := l.LatestEpoch()
	if len(visible) > 0 && got != latest || len(s.batches) == 0 && got != -1 {
		return fmt.Errorf("latest epoch %d, want %d", got, latest)
	}
	return nil
}

// checkProducers compares producers, transactions and the last stable offset
// with a replay of all batches, those of deleted segments too. Only the index knows of these.
func (s logState) checkProducers(l *Log, _ []record.Batch, e expected) error {
	first := l.Segments()[0].Base
	list := s.batches
	if s.compacted {
		list = s.original
	}
	err := errors.New("no batches")
	for i := 0; i <= len(list); i++ {
		if i > 0 && (!e.noIndex || list[i-1].NextOffset() > first) {
			break
		}
		t := replay(list[i:])
		t.TruncateStart(s.start)
		errNow := s.producersAre(l, t, e)
		if errNow == nil {
			return nil
		}
		if i == 0 { // the one to tell: nothing is forgotten
			err = errNow
		}
	}
	return err
}

func (s logState) producersAre(l *Log, t *producer.Table, e expected) error {
	if got, want := fmt.Sprint(l.OpenTxns()), fmt.Sprint(t.Open()); got != want {
		return fmt.Errorf("open transactions %s, want %s", got, want)
	}
	if err := s.abortedAre(l, t); err != nil {
		return err
	}
	if got, want := fmt.Sprint(s.timeless(l.Producers())), fmt.Sprint(s.timeless(t.Producers())); got != want {
		return fmt.Errorf("producers %s, want %s", got, want)
	}
	hw := l.HighWatermark()
	got, want := l.LastStable(hw), s.lastStable(t, hw, hw)
	// A marker that was below an earlier high watermark stays decided when the
	// crash takes the high watermark back.
	for later := hw + 1; got != want && later <= e.hwMax; later++ {
		if got == s.lastStable(t, hw, later) {
			return nil
		}
	}
	if got != want {
		return fmt.Errorf("last stable offset %d, want %d (high watermark %d)", got, want, hw)
	}
	return nil
}

// abortedAre compares the aborted transactions. Those of which compaction has
// left nothing may be known or not.
func (s logState) abortedAre(l *Log, t *producer.Table) error {
	got, want := l.Aborted(s.start, s.end), t.AbortedIn(s.start, s.end)
	if !s.compacted {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("aborted transactions %v, want %v", got, want)
		}
		return nil
	}
	left := replay(s.batches).AbortedIn(s.start, s.end) // they may begin later: with what is left of them
	for _, a := range got {
		if !slices.Contains(want, a) && !slices.Contains(left, a) {
			return fmt.Errorf("aborted transaction %v, there were %v, of which is left %v", a, want, left)
		}
	}
	for _, a := range left {
		if !slices.ContainsFunc(got, func(g producer.AbortedTxn) bool {
			return g.ProducerID == a.ProducerID && g.FirstOffset <= a.FirstOffset
		}) {
			return fmt.Errorf("aborted transactions %v, want %v among them", got, a)
		}
	}
	return nil
}

// checkCommitted compares what a reader of committed records ends up with: the
// last value of each key.
func (s logState) checkCommitted(l *Log, _ []record.Batch, _ expected) error {
	if !s.compacted {
		return nil
	}
	hw := l.HighWatermark()
	lso, aborts := l.LastStable(hw), replay(s.original).Aborts()
	var committed []found
	for _, b := range s.original {
		aborted := slices.ContainsFunc(aborts, func(a producer.Abort) bool {
			return b.IsTransactional() && a.ProducerID == b.ProducerID() && a.First <= b.BaseOffset() && b.BaseOffset() < a.Marker
		})
		if !b.IsControl() && !aborted && b.NextOffset() <= lso {
			committed = append(committed, recordsOf(panicker{}, []record.Batch{b})...)
		}
	}
	if got, want := fmt.Sprint(state(readCommitted(panicker{}, l, hw))), fmt.Sprint(state(committed)); got != want {
		return fmt.Errorf("committed state %s, want %s", got, want)
	}
	return nil
}

// leftOf lets aborted transactions begin with what compaction has left of them.
func (s logState) leftOf(list []producer.AbortedTxn) []producer.AbortedTxn {
	if !s.compacted {
		return list
	}
	var left []producer.AbortedTxn
	for _, a := range list {
		i := slices.IndexFunc(s.batches, func(b record.Batch) bool {
			return b.ProducerID() == a.ProducerID && b.BaseOffset() >= a.FirstOffset
		})
		if i >= 0 && !s.batches[i].IsControl() {
			left = append(left, producer.AbortedTxn{ProducerID: a.ProducerID, FirstOffset: s.batches[i].BaseOffset()})
		}
	}
	return left
}

// timeless forgets the times of last batches, which compaction may take.
func (s logState) timeless(list []producer.Producer) []producer.Producer {
	if s.compacted {
		for i := range list {
			list[i].LastTimestamp = 0
		}
	}
	return list
}

func (s logState) lastStable(t *producer.Table, hw, replicated int64) int64 {
	if first, ok := t.FirstUnstable(replicated); ok {
		return min(hw, max(first, s.start))
	}
	return hw
}

// checkTimes looks up every timestamp and its neighbours.
func (s logState) checkTimes(l *Log, visible []record.Batch, _ expected) error {
	type stamp struct{ offset, time int64 }
	var all []stamp
	newest := stamp{-1, -1}
	for _, b := range visible {
		_ = b.Records(func(r record.Record) error {
			at := stamp{b.BaseOffset() + int64(r.OffsetDelta), b.BaseTimestamp() + r.TimestampDelta}
			if at.offset >= s.start {
				if all = append(all, at); at.time > newest.time {
					newest = at
				}
			}
			return nil
		})
	}
	for i := 0; i < len(all); i += 3 {
		for ts := all[i].time; ts <= all[i].time+1; ts++ {
			want := stamp{-1, -1}
			for _, at := range all {
				if at.time >= ts {
					want = at
					break
				}
			}
			o, at, _, ok, err := l.OffsetForTime(ts)
			if err != nil || ok != (want.offset >= 0) || o != want.offset || at != want.time {
				return fmt.Errorf("offset for time %d is %d at %d (%v, %v), want %v", ts, o, at, ok, err, want)
			}
		}
	}
	o, ts, _, ok := l.MaxTimestamp()
	if ok != (newest.offset >= 0) || o != newest.offset || ts != newest.time {
		return fmt.Errorf("greatest timestamp %d at %d (%v), want %v", ts, o, ok, newest)
	}
	return nil
}

// everything is everything a log says, and all bytes of its segments. What is
// still known of batches that compaction took, the times of producers' last ones
// and where an aborted transaction began, is up to the snapshots that a recovery finds.
func (s logState) everything(l *Log) (string, error) {
	var b strings.Builder
	start, end, hw := l.StartOffset(), l.EndOffset(), l.HighWatermark()
	fmt.Fprintln(&b, start, end, hw, l.DurableEnd(), l.Size(), l.Epochs(), s.timeless(l.Producers()), l.OpenTxns(), s.leftOf(l.Aborted(start, end)), l.LastStable(hw), l.LastStable(end))
	for _, s := range l.Segments() {
		p, err := readFile(l.store.disk, s.Path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&b, s.Path, s.Base, s.End, s.Size, len(p), crc32.ChecksumIEEE(p))
	}
	o, ts, e, ok := l.MaxTimestamp()
	fmt.Fprintln(&b, o, ts, e, ok)
	return b.String(), nil
}
