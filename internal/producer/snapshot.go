package producer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sort"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// snapshotVersion rises with every change of the layout; a reader that meets
// another number rebuilds from the log.
const snapshotVersion = 1

// ErrSnapshot says that bytes are not a snapshot of ours. The log then rebuilds
// the table from its batches.
var ErrSnapshot = errors.New("producer: unreadable snapshot")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode appends a snapshot of the table to dst:
//
//	version byte, touched byte, varint count of producers, each: id, epoch, coordinator epoch,
//	last time, first offset of the open transaction, n, n batches;
//	varint counts of decided and aborted transactions with their fields;
//	CRC-32C of all that, 4 bytes
//
// Equal tables give equal bytes. Aborted transactions are part of it, because a
// table is restored whole.
func (t *Table) Encode(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, snapshotVersion, 0)
	if t.touched {
		dst[start+1] = 1
	}
	ids := make([]int64, 0, len(t.producers))
	for id := range t.producers {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	put := func(vs ...int64) {
		for _, v := range vs {
			dst = binary.AppendVarint(dst, v)
		}
	}
	put(int64(len(ids)))
	for _, id := range ids {
		s := t.producers[id]
		put(id, int64(s.epoch), int64(s.coordEp), s.lastTime, s.txnFirst, int64(s.n))
		for _, b := range s.batches[:s.n] {
			put(int64(b.lastSeq), int64(b.delta), b.lastOffset, b.timestamp)
		}
	}
	put(int64(len(t.decided)))
	for _, d := range t.decided {
		put(d.first, d.marker)
	}
	put(int64(len(t.aborted)))
	for _, a := range t.aborted {
		put(a.producer, a.first, a.marker, a.stable)
	}
	return seal(dst, start)
}

// seal appends the checksum of dst[start:].
func seal(dst []byte, start int) []byte {
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// Decode makes a table from a snapshot.
func Decode(src []byte) (*Table, error) {
	if len(src) < 6 || src[0] != snapshotVersion {
		return nil, fmt.Errorf("%w: %d bytes, version not %d", ErrSnapshot, len(src), snapshotVersion)
	}
	body, sum := src[:len(src)-4], binary.BigEndian.Uint32(src[len(src)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("%w: checksum differs", ErrSnapshot)
	}
	r := reader{p: body[2:]}
	t := New()
	t.touched = body[1] != 0
	for range r.count(6) {
		s := &state{id: r.int(), epoch: int16(r.int()), coordEp: int32(r.int()), lastTime: r.int(), txnFirst: r.int(), n: int(r.int())}
		if s.n < 0 || s.n > Window {
			return nil, fmt.Errorf("%w: window of %d", ErrSnapshot, s.n)
		}
		for i := range s.n {
			s.batches[i] = batch{lastSeq: int32(r.int()), delta: int32(r.int()), lastOffset: r.int(), timestamp: r.int()}
		}
		t.producers[s.id] = s
		if s.txnFirst >= 0 {
			t.open = append(t.open, s)
		}
	}
	for range r.count(2) {
		t.decided = append(t.decided, span{first: r.int(), marker: r.int()})
	}
	for range r.count(4) {
		t.aborted = append(t.aborted, aborted{producer: r.int(), first: r.int(), marker: r.int(), stable: r.int()})
		if invariants.Planted("abortedForgottenAtRestart") {
			t.aborted = nil
		}
	}
	if r.bad || len(r.p) != 0 {
		return nil, fmt.Errorf("%w: ends in the wrong place", ErrSnapshot)
	}
	sort.Slice(t.open, func(i, j int) bool { return t.open[i].txnFirst < t.open[j].txnFirst })
	return t, nil
}

type reader struct {
	p   []byte
	bad bool
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.p)
	if n <= 0 {
		r.bad, r.p = true, nil
		return 0
	}
	r.p = r.p[n:]
	return v
}

// count reads how many items follow. Each takes at least the given number of
// bytes, which bounds what a wrong count can make us allocate.
func (r *reader) count(fields int64) int64 {
	n := r.int()
	if n < 0 || n > int64(len(r.p))/fields {
		r.bad, r.p = true, nil
		return 0
	}
	return n
}
