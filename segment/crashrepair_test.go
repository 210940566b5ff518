package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// healing puts right what a crash left of a log that was damaged on purpose.
type healing struct {
	partition int32
	fetch     Fetch  // nil: nobody has the bytes
	noted     bool   // the damage was known: opening must tell of it, nobody has to look for it
	damaged   []byte // what must be in quarantine afterwards, if not nil
}

// healed opens what a check looks at, and repairs what was damaged: the log is
// either damaged still and refuses everything, or whole.
func (r *crashRun) healed(fs *crashFS, h *healing) (*Store, []*Log, error) {
	if h == nil {
		return r.openStore(fs)
	}
	if h.fetch == nil {
		if err := r.acceptLossOf(fs); err != nil {
			return nil, nil, err
		}
	}
	s, logs, err := r.openDamaged(fs)
	if err != nil {
		return nil, nil, err
	}
	if l := logs[h.partition]; h.fetch != nil {
		err = h.heal(s, l)
	}
	if err == nil && h.damaged != nil {
		err = h.inQuarantine(s)
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, logs, nil
}

func (h *healing) heal(s *Store, l *Log) error {
	if !h.noted {
		s.scrubber.pass()
	}
	if l.Damage() == nil {
		return nil // the bytes are compared with the model's
	}
	if v, err := l.Read(l.StartOffset(), 1, math.MaxInt64, true); !errors.Is(err, ErrCorrupt) {
		v.Release()
		return fmt.Errorf("a damaged log answers a read: %v", err)
	}
	_, err := l.Repair(context.Background(), h.fetch)
	return err
}

func (h *healing) inQuarantine(s *Store) error {
	for _, k := range s.quarantine.list() {
		if b, err := readFile(s.disk, k.path); err == nil && bytes.Equal(b, h.damaged) {
			return nil
		}
	}
	return errors.New("the damaged file is not in quarantine")
}

// openDamaged is openStore for logs that may be damaged.
func (r *crashRun) openDamaged(fs *crashFS) (*Store, []*Log, error) {
	o := r.o
	o.FS = r.view(fs)
	s, err := Open(o)
	if err != nil {
		return nil, nil, err
	}
	var logs []*Log
	for _, g := range r.logs {
		l, err := s.OpenLog(topicA, g.partition, r.c)
		if l == nil {
			return nil, nil, errors.Join(err, s.Close())
		}
		logs = append(logs, l)
	}
	return s, logs, nil
}

// acceptLossOf is a start of the server, which finishes what was interrupted, and
// the command after it.
func (r *crashRun) acceptLossOf(fs *crashFS) error {
	s, _, err := r.openDamaged(fs)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	o := r.o
	o.FS = r.view(fs)
	found, err := Inspect(o, nil)
	if err != nil {
		return err
	}
	_, err = AcceptLoss(context.Background(), o, found)
	return err
}

// close is a clean stop that is not tried.
func (r *crashRun) close() {
	if err := r.s.Close(); err != nil {
		r.fatal("close: %v", err)
	}
	for _, g := range r.logs {
		g.durable, g.start, g.hwDurable = g.state.end, g.state.start, g.hw
	}
}

// hurt damages a closed segment, durably.
func (r *crashRun) hurt(g *crashLog, kinds ...string) (h *healing) {
	segments := g.l.Segments()
	i := r.rng.IntN(len(segments) - 1)
	path := segments[i].Path
	d := newDisk(r.fs)
	b, err := readFile(d, path)
	if err != nil {
		r.fatal("%v", err)
	}
	at := 0
	for range len(split(panicker{}, b)) / 2 {
		at += record.Batch(b[at:]).Size()
	}
	name := kinds[r.rng.IntN(len(kinds))]
	k := slices.IndexFunc(hurts, func(h hurt) bool { return h.name == name })
	h = &healing{partition: g.partition, fetch: fetchFrom(g.state.batches)}
	if b = hurts[k].do(b, at); b == nil {
		err = r.fs.Remove(path)
	} else {
		if len(b) > 0 && !strings.HasPrefix(name, "cut") {
			h.damaged = slices.Clone(b)
		}
		err = r.overwrite(path, b)
	}
	if err == nil {
		err = d.syncDir(d.PathDir(path))
	}
	if err != nil {
		r.fatal("%v", err)
	}
	g.l.mu.RLock()
	seg := g.l.mu.segments[i]
	g.l.mu.RUnlock()
	r.s.files.drop(seg, false) // the next reader opens what is there now
	return h
}

func (r *crashRun) overwrite(path string, b []byte) error {
	f, err := r.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// fetchFrom is somebody who has every batch.
func fetchFrom(batches []record.Batch) Fetch {
	return func(_ context.Context, from, to int64) (all []byte, next int64, err error) {
		for _, b := range batches {
			if b.BaseOffset() >= from && b.NextOffset() <= to {
				all = append(all, b...)
			}
		}
		return all, to, nil
	}
}

// filled has some closed segments, all of it durable and in the marks.
func filled(r *crashRun) {
	g := r.logs[0]
	for len(g.l.Segments()) < 4 {
		r.append(g)
	}
	r.flush(g)
	g.hw = g.state.end
	g.l.SetHighWatermark(g.hw)
	r.checkpoint()
}

// scrubbed is damage that the scrubber finds in a log in use.
func (r *crashRun) scrubbed(g *crashLog, kinds ...string) {
	h := r.hurt(g, kinds...)
	st := r.step("scrub", func() error { r.s.scrubber.pass(); return nil })
	st.heal = h
	if g.l.Damage() == nil {
		r.fatal("the scrubber found no damage")
	}
	r.repair(g, h)
}

func (r *crashRun) repair(g *crashLog, h *healing) {
	known := *h
	known.noted = true
	st := r.step("repair", func() error { _, err := g.l.Repair(context.Background(), h.fetch); return err })
	st.heal = &known
	r.verify()
}

// opened is damage that is there when the log is opened.
func (r *crashRun) opened(g *crashLog, kinds ...string) {
	r.close()
	h := r.hurt(g, kinds...)
	st := r.step("open damaged", func() (err error) {
		var logs []*Log
		if r.s, logs, err = r.openDamaged(r.fs); err != nil {
			return err
		}
		for i, l := range logs {
			r.logs[i].l = l
		}
		return nil
	})
	st.heal = h
	if g.l.Damage() == nil {
		r.fatal("a start found no damage")
	}
	r.repair(g, h)
}

// acceptLoss is damage that nobody can repair.
func (r *crashRun) acceptLoss(g *crashLog, kinds ...string) {
	r.close()
	h := r.hurt(g, kinds...)
	h.fetch = nil
	o := r.o
	o.FS = r.view(r.fs)
	found, err := Inspect(o, nil)
	if err != nil {
		r.fatal("%v", err)
	}
	st := r.step("accept loss", func() error { _, err := AcceptLoss(context.Background(), o, found); return err })
	st.heal = h
	if r.s, _, err = r.openDamaged(r.fs); err != nil {
		r.fatal("%v", err)
	}
	after := g.state
	if after.original == nil {
		after.original = g.state.batches
	}
	after.batches = nil
	if g.l, err = r.s.OpenLog(topicA, g.partition, r.c); err != nil {
		r.fatal("after the loss was accepted: %v", err)
	}
	for _, b := range fileBatches(panicker{}, g.l) {
		after.batches = append(after.batches, slices.Clone(b))
	}
	st.expect[g.partition] = g.expected(bounded{after, g.durable, g.start})
	g.state = after
	r.verify()
}

// keep copies what is cut then, as a mirror does.
func (r *crashRun) keep(g *crashLog, end int64) {
	var k Kept
	r.step("keep", func() (err error) { k, err = g.l.Keep(end); return err })
	b, err := readFile(newDisk(r.fs), k.Path)
	if err != nil || len(b) == 0 {
		r.fatal("kept %d bytes: %v", len(b), err)
	}
	n := len(r.steps)
	r.truncate(g, end)
	if r.recording {
		r.steps[n].kept = map[string][]byte{k.Path: b}
	}
}

// tight is a small disk with a reserve, and a ballast in it.
func tight(r *crashRun) {
	r.o.ReserveBytes = 40 << 10
	r.fs.usage = roomy
}

var (
	roomy = vfs.DiskUsage{AvailBytes: 900 << 10, TotalBytes: 1 << 20}
	brim  = vfs.DiskUsage{AvailBytes: 4 << 10, TotalBytes: 1 << 20}
)

// fillDisk is another program that takes all room: the ballast is given up, and
// records are refused until there is room again.
func (r *crashRun) fillDisk(g *crashLog) {
	look := func(name string, u vfs.DiskUsage, want State) {
		r.fs.setUsage(u)
		r.step(name, func() error { r.s.space.look(); return nil })
		_, err := r.s.disk.Stat(r.s.space.ballast.path)
		if got := r.s.Health().State; got != want || (err == nil) != (want == Healthy) {
			r.fatal("%s: %v, ballast %v", name, r.s.Health(), err)
		}
	}
	look("disk full", brim, Full)
	if _, err := g.l.Append(r.batches(g)[0]); !errors.Is(err, ErrFull) {
		r.fatal("append on a full disk: %v", err)
	}
	r.flush(g)
	r.retain(g)
	r.checkpoint()
	r.stop()
	look("room again", roomy, Healthy)
	r.append(g)
}

var repairWorkloads = []crashWorkload{
	{name: "scrub", prepare: filled, run: func(r *crashRun) {
		r.scrubbed(r.logs[0], "record byte", "zeroed page", "garbage", "crc", "last offset delta")
		r.append(r.logs[0])
	}},
	{name: "repair", prepare: filled, run: func(r *crashRun) {
		r.opened(r.logs[0], "missing", "cut in a batch", "cut between batches", "empty", "longer")
		r.append(r.logs[0])
		r.flush(r.logs[0])
	}},
	{name: "accept-loss", prepare: filled, run: func(r *crashRun) {
		r.acceptLoss(r.logs[0], "record byte", "missing", "cut in a batch", "first header", "all zero")
		r.append(r.logs[0])
		r.flush(r.logs[0])
	}},
	{name: "keep", prepare: filled, run: func(r *crashRun) {
		g := r.logs[0]
		r.keep(g, g.state.batches[len(g.state.batches)-2].BaseOffset())
		r.append(g)
		r.flush(g)
		r.keep(g, g.state.batches[len(g.state.batches)-2].BaseOffset())
	}},
	{name: "full-disk", setup: tight, run: func(r *crashRun) {
		appends(6)(r)
		r.fillDisk(r.logs[0])
	}},
}
