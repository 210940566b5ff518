package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// segment is one file of a log. Its bytes are only ever added to, and once cut
// they are never written again: after a cut inside a file the log goes on in a
// new one. So a position in a segment means the same bytes for ever.
type segment struct {
	log  *Log
	base int64 // offset in the file name; nothing in the file is below it

	// Guarded by the log's lock.
	size    int64 // bytes of whole batches
	end     int64 // end of the last batch, base if there is none
	synced  int64 // bytes known to be durable; if all of size, so are the segments before it
	times   times
	trimmed bool // index entries of this segment are in Pebble, not only in memory

	dirty atomic.Bool // size > synced, or about to be: the file cache must not close it

	ahead ahead // see writeback

	// Guarded by the file cache's lock.
	h       *handle
	dropped bool // the file is gone, or its name belongs to another
}

// times is what a segment knows about its batches beside where they end: their
// timestamps, and a checksum that holds them together.
type times struct {
	first     int64 // greatest timestamp of the first batch that has one, noTime without
	max       int64 // greatest timestamp of all, noTime without one
	maxOffset int64 // last offset of the first batch that has it

	// heads is the CRC-32C of the first bytes of all batches, one after the other:
	// base offset, length, leader epoch, magic and CRC. A batch's own CRC covers
	// none of them, so without it a flipped bit in an offset or an epoch, or a
	// whole batch of another place, would be found by nothing.
	heads uint32
}

// headSize is how much of a batch its own CRC does not cover, the CRC included.
const headSize = 21

// noTime is Kafka's NO_TIMESTAMP.
const noTime = -1

var unknownTimes = times{first: noTime, max: noTime, maxOffset: -1}

// add takes in the next batch; its header is enough.
func (t *times) add(b record.Batch) {
	t.heads = crc32.Update(t.heads, castagnoli, b[:headSize])
	t.addTime(b.NumRecords(), b.MaxTimestamp(), b.LastOffset())
}

// addTime is add without heads. A batch without records has no time: it stays behind
// when compaction took them, and nobody who asks for a time may be led to it.
func (t *times) addTime(records int32, maxTimestamp, lastOffset int64) {
	if records == 0 {
		return
	}
	if t.first == noTime {
		t.first = maxTimestamp
	}
	if maxTimestamp > t.max {
		t.max, t.maxOffset = maxTimestamp, lastOffset
	}
}

// setDirty keeps the file cache from closing the file. It mostly is, and a store waits
// for those before it.
func (s *segment) setDirty() {
	if !s.dirty.Load() {
		s.dirty.Store(true)
	}
}

func (s *segment) path() string {
	return s.log.store.disk.PathJoin(s.log.dir, fileName(s.base))
}

const fileSuffix = ".log"

// fileName is Kafka's: the base offset in 20 digits.
func fileName(base int64) string { return fmt.Sprintf("%020d%s", base, fileSuffix) }

func parseFileName(name string) (base int64, ok bool) {
	digits, ok := strings.CutSuffix(name, fileSuffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		if base > (1<<63-1-int64(c-'0'))/10 {
			return 0, false
		}
		base = base*10 + int64(c-'0')
	}
	return base, true
}

// summary is what the index remembers about a closed segment, so that opening
// a log need not walk it.
type summary struct {
	size   int64
	end    int64
	times  times
	epochs []epoch.Entry // of the batches in it, and of nothing else: as a walk finds them
}

// summaryVersion rises with every change; another number means "walk it".
const summaryVersion = 2

func (m *summary) encode() []byte {
	b := []byte{summaryVersion}
	for _, v := range []int64{m.size, m.end, m.times.first, m.times.max, m.times.maxOffset, int64(m.times.heads), int64(len(m.epochs))} {
		b = binary.AppendVarint(b, v)
	}
	for _, e := range m.epochs {
		b = binary.AppendVarint(b, int64(e.Epoch))
		b = binary.AppendVarint(b, e.Start)
	}
	return b
}

var errSummary = errors.New("segment: unreadable summary")

func decodeSummary(b []byte) (*summary, error) {
	if len(b) == 0 || b[0] != summaryVersion {
		return nil, errSummary
	}
	b = b[1:]
	bad := false
	next := func() int64 {
		v, n := binary.Varint(b)
		if n <= 0 {
			bad, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	m := &summary{size: next(), end: next(), times: times{first: next(), max: next(), maxOffset: next()}}
	heads := next()
	m.times.heads = uint32(heads)
	n := next()
	if n < 0 || n > int64(len(b))/2 {
		return nil, errSummary
	}
	for range n {
		m.epochs = append(m.epochs, epoch.Entry{Epoch: int32(next()), Start: next()})
	}
	if bad || len(b) != 0 || m.size < 0 || m.end < 0 || int64(m.times.heads) != heads {
		return nil, errSummary
	}
	return m, nil
}
