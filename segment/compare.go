package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// DifferenceKind is what two logs disagree in.
type DifferenceKind string

const (
	Differing DifferenceKind = "differing" // both have the offsets, in other bytes
	OnlyInA   DifferenceKind = "only-in-a" // batches that B lacks
	OnlyInB   DifferenceKind = "only-in-b"
	Damaged   DifferenceKind = "damaged" // bytes that are no batch; the rest of the file was not compared
)

// Where a range that only one log has lies in the other's.
const (
	AtStart = "start" // before its first batch: retention, or a later log start
	AtEnd   = "end"   // behind its last batch: it lags
	Inside  = "hole"  // between two of its batches
)

// Difference is one range of offsets in which two logs are not the same.
type Difference struct {
	Kind     DifferenceKind `json:"kind"`
	Where    string         `json:"where,omitempty"` // of OnlyInA and OnlyInB
	From     int64          `json:"from"`
	To       int64          `json:"to"` // exclusive
	BatchesA int64          `json:"batchesA"`
	BatchesB int64          `json:"batchesB"`
	A        *Place         `json:"a,omitempty"` // where it begins
	B        *Place         `json:"b,omitempty"`
	Detail   string         `json:"detail,omitempty"`
}

// Place is a position in a file.
type Place struct {
	File     string `json:"file"`
	Position int64  `json:"position"`
}

// Side is what one log has.
type Side struct {
	Batches int64 `json:"batches"`
	Bytes   int64 `json:"bytes"`
	Start   int64 `json:"start"` // of its first batch; -1 without one
	End     int64 `json:"end"`
	// Compacted says that offsets are missing in it, between batches or inside of
	// them. Two copies that are compacted by themselves have the same newest record
	// of each key and need not have the same batches.
	Compacted bool `json:"compacted"`
}

// Comparison is the sum of a comparison.
type Comparison struct {
	Equal      int64 `json:"equal"` // batches
	EqualBytes int64 `json:"equalBytes"`
	A          Side  `json:"a"`
	B          Side  `json:"b"`

	Differing, Holes, Ends, Damaged int64 `json:"-"` // ranges
}

// Same says whether nothing was found that is not equal. With common, ranges
// that only one log has at its start or end do not count.
func (c *Comparison) Same(common bool) bool {
	return c.Differing+c.Holes+c.Damaged == 0 && (common || c.Ends == 0)
}

// CompareDirs compares the batches in two directories of segment files, byte by
// byte and in order of their offsets, and calls fn for each difference. How the
// batches are spread over files does not matter. It reads the files alone and
// holds one batch of each side.
func CompareDirs(a, b string, fn func(Difference) error) (*Comparison, error) {
	c := &comparing{fn: fn}
	c.sum.A, c.sum.B = Side{Start: -1, End: -1}, Side{Start: -1, End: -1}
	var err error
	if c.a.log, err = openOffline(a); err != nil {
		return nil, err
	}
	defer c.a.log.close()
	if c.b.log, err = openOffline(b); err != nil {
		return nil, err
	}
	defer c.b.log.close()
	c.a.side, c.b.side = &c.sum.A, &c.sum.B
	if err := c.run(); err != nil {
		return nil, err
	}
	return &c.sum, nil
}

// cursor is the place in one log.
type cursor struct {
	log   *offlineLog
	side  *Side
	batch record.Batch // nil at the end
	at    Place
}

type comparing struct {
	a, b cursor
	fn   func(Difference) error
	sum  Comparison
	open *Difference // a range of one side that may go on
}

func (c *comparing) run() error {
	for _, x := range []*cursor{&c.a, &c.b} {
		if err := c.advance(x); err != nil {
			return err
		}
	}
	for c.a.batch != nil || c.b.batch != nil {
		if err := c.step(); err != nil {
			return err
		}
	}
	return c.flush()
}

// advance goes to the next batch of one side.
func (c *comparing) advance(x *cursor) error {
	for {
		b, pos, err := x.log.next()
		var damage *DamageError
		switch {
		case errors.Is(err, io.EOF):
			x.batch = nil
			return nil
		case errors.As(err, &damage):
			if err := c.damaged(x, damage); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		x.batch, x.at = b, Place{x.log.path, pos}
		s := x.side
		if s.Start < 0 {
			s.Start, s.End = b.BaseOffset(), b.BaseOffset()
		}
		if b.BaseOffset() > s.End || int64(b.NumRecords()) <= int64(b.LastOffsetDelta()) {
			s.Compacted = true
		}
		s.Batches, s.Bytes, s.End = s.Batches+1, s.Bytes+int64(len(b)), b.NextOffset()
		return nil
	}
}

func (c *comparing) damaged(x *cursor, e *DamageError) error {
	if err := c.flush(); err != nil {
		return err
	}
	c.sum.Damaged++
	d := Difference{Kind: Damaged, From: e.Offset, To: e.Offset, Detail: e.Err.Error()}
	at := &Place{e.File, e.At}
	if x == &c.a {
		d.A = at
	} else {
		d.B = at
	}
	return c.fn(d)
}

func (c *comparing) step() error {
	a, b := c.a.batch, c.b.batch
	switch {
	case b == nil || a != nil && a.NextOffset() <= b.BaseOffset():
		return c.only(OnlyInA, &c.a, &c.b)
	case a == nil || b.NextOffset() <= a.BaseOffset():
		return c.only(OnlyInB, &c.b, &c.a)
	case bytes.Equal(a, b):
		if err := c.flush(); err != nil {
			return err
		}
		c.sum.Equal++
		c.sum.EqualBytes += int64(len(a))
		return errors.Join(c.advance(&c.a), c.advance(&c.b))
	}
	return c.differing()
}

// only notes a batch that the other side lacks.
func (c *comparing) only(kind DifferenceKind, x, other *cursor) error {
	where := Inside
	switch {
	case other.batch == nil:
		where = AtEnd
	case other.side.Batches == 1: // its first batch is still to come
		where = AtStart
	}
	if c.open == nil || c.open.Kind != kind || c.open.Where != where {
		if err := c.flush(); err != nil {
			return err
		}
		c.open = &Difference{Kind: kind, Where: where, From: x.batch.BaseOffset()}
		at := x.at
		if kind == OnlyInA {
			c.open.A = &at
		} else {
			c.open.B = &at
		}
	}
	c.open.To = x.batch.NextOffset()
	if kind == OnlyInA {
		c.open.BatchesA++
	} else {
		c.open.BatchesB++
	}
	return c.advance(x)
}

// differing notes a range that both have, and goes on where batches of both
// begin behind it.
func (c *comparing) differing() error {
	if err := c.flush(); err != nil {
		return err
	}
	atA, atB := c.a.at, c.b.at
	d := Difference{
		Kind: Differing, From: min(c.a.batch.BaseOffset(), c.b.batch.BaseOffset()), A: &atA, B: &atB,
		Detail: explain(c.a.batch, c.b.batch),
	}
	d.To = max(c.a.batch.NextOffset(), c.b.batch.NextOffset())
	for {
		switch {
		case c.a.batch != nil && c.a.batch.BaseOffset() < d.To:
			d.To = max(d.To, c.a.batch.NextOffset())
			d.BatchesA++
			if err := c.advance(&c.a); err != nil {
				return err
			}
		case c.b.batch != nil && c.b.batch.BaseOffset() < d.To:
			d.To = max(d.To, c.b.batch.NextOffset())
			d.BatchesB++
			if err := c.advance(&c.b); err != nil {
				return err
			}
		default:
			c.sum.Differing++
			return c.fn(d)
		}
	}
}

// flush tells of a range of one side that has ended.
func (c *comparing) flush() error {
	d := c.open
	if d == nil {
		return nil
	}
	c.open = nil
	if d.Where == Inside {
		c.sum.Holes++
	} else {
		c.sum.Ends++
	}
	return c.fn(*d)
}

// explain says in what two batches differ, as far as their headers tell.
func explain(a, b record.Batch) string {
	for _, x := range []struct {
		name string
		a, b any
	}{
		{"base offset", a.BaseOffset(), b.BaseOffset()},
		{"last offset", a.LastOffset(), b.LastOffset()},
		{"leader epoch", a.PartitionLeaderEpoch(), b.PartitionLeaderEpoch()},
		{"size", len(a), len(b)},
		{"records", a.NumRecords(), b.NumRecords()},
		{"producer id", a.ProducerID(), b.ProducerID()},
		{"CRC", fmt.Sprintf("%08x", a.CRC()), fmt.Sprintf("%08x", b.CRC())},
	} {
		if x.a != x.b {
			return fmt.Sprintf("%s %v and %v", x.name, x.a, x.b)
		}
	}
	return "bytes under the same CRC"
}
