package segment

import (
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// gathered is all that an append wants to know of its batches. One walk over their
// headers finds it, before anything is written: headers of small batches lie in as
// many cache lines, and the write pushes these out again, so that a second walk
// behind it, with readers waiting, was a fifth of the time that an append took.
type gathered struct {
	Appended

	// Of the segment, once the batches are in it.
	times   times
	entries []entry // new ones of the index
	indexed int64   // position of the last entry

	// What is new to the log, unless its history is being gathered, which will come to
	// these batches.
	epochs    []epoch.Entry // each where the piece begins or the epoch changes
	producers producer.Changes

	heads headSum
}

// gathers lends them to appends: an idle log has none.
var gathers = sync.Pool{New: func() any { return new(gathered) }}

// gather walks the batches, checks that they may stand at the log end, and finds
// what seg will have to know of them. known says that the log's history is. For
// holders of wr.
func (g *gathered) gather(l *Log, seg *segment, batches []byte, known bool) error {
	if len(batches) == 0 {
		return fmt.Errorf("append to %s: no batches", l.id)
	}
	end, last := l.mu.end, int32(epoch.Undefined)
	g.Appended = Appended{First: -1, MaxTimestamp: noTime, OffsetOfMaxTimestamp: -1}
	g.times, g.indexed = seg.times, l.indexed
	g.entries, g.epochs = g.entries[:0], g.epochs[:0]
	g.producers.Reset()
	g.heads.reset(g.times.heads)
	pos, interval := seg.size, l.store.o.IndexInterval
	var h record.Head
	for rest := batches; len(rest) > 0; {
		if err := h.Next(rest); err != nil {
			return fmt.Errorf("append to %s at %d: %w", l.id, end, err)
		}
		b := record.Batch(rest[:h.Size])
		rest = rest[h.Size:]
		if h.BaseOffset < end {
			return fmt.Errorf("append to %s: %w: batch at %d, log end is %d", l.id, ErrOffsetOrder, h.BaseOffset, end)
		}
		end = h.LastOffset() + 1
		if g.First < 0 {
			g.First = h.BaseOffset
		}
		if h.MaxTimestamp > g.MaxTimestamp {
			g.MaxTimestamp, g.OffsetOfMaxTimestamp = h.MaxTimestamp, end-1
		}
		if pos-g.indexed >= interval {
			g.entries = append(g.entries, entry{offset: h.BaseOffset, pos: pos, time: g.times.max})
			g.indexed = pos
		}
		g.heads.add(b)
		g.times.addTime(h.NumRecords, h.MaxTimestamp, end-1)
		pos += int64(h.Size)
		if !known {
			continue
		}
		if h.PartitionLeaderEpoch != last {
			// Of batches that follow each other in one epoch only the first says anything.
			last = h.PartitionLeaderEpoch
			g.epochs = append(g.epochs, epoch.Entry{Epoch: last, Start: h.BaseOffset})
		}
		g.producers.Add(b, &h)
	}
	g.End = end
	g.times.heads = g.heads.sum()
	return nil
}

// headSum is times.heads of many batches: their heads are collected, because a
// checksum over a page costs a third of many over 21 bytes.
type headSum struct {
	crc uint32
	n   int
	buf [headSumBatches * headSize]byte
}

const headSumBatches = 96 // 2 KiB

func (s *headSum) reset(crc uint32) { s.crc, s.n = crc, 0 }

func (s *headSum) add(b record.Batch) {
	if s.n == len(s.buf) {
		s.sum()
	}
	// Three words that overlap: a copy of 21 bytes would be a call.
	to, from := (*[headSize]byte)(s.buf[s.n:]), (*[headSize]byte)(b)
	*(*[8]byte)(to[:]) = [8]byte(from[:])
	*(*[8]byte)(to[8:]) = [8]byte(from[8:])
	*(*[8]byte)(to[headSize-8:]) = [8]byte(from[headSize-8:])
	s.n += headSize
}

func (s *headSum) sum() uint32 {
	s.crc, s.n = crc32.Update(s.crc, castagnoli, s.buf[:s.n]), 0
	return s.crc
}
