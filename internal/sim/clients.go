package sim

import (
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// client is what producers and consumers have in common: one partition, and a belief
// about who leads it.
type client struct {
	w      *World
	proc   proc
	topic  metadata.TopicID
	name   string
	index  int32
	leader int32
	epoch  int32
}

// learn asks a broker, any, for metadata.
func (c *client) learn(then func()) {
	b := c.w.brokers[c.w.ids[c.w.loop.rng.IntN(len(c.w.ids))]]
	c.w.net.call(&c.proc, &b.proc, 300*time.Millisecond, func(reply func(any)) {
		if b.img != nil {
			reply(b.img.Partition(c.topic, c.index))
		}
	}, func(v any, err error) {
		if p, ok := v.(*metadata.Partition); ok && p != nil && err == nil && p.LeaderEpoch >= c.epoch {
			c.leader, c.epoch = p.Leader, p.LeaderEpoch
		}
		then()
	})
}

// writer is an idempotent producer of one partition with up to five batches under way.
type writer struct {
	client
	acks    int16
	pid     int64
	seq     int32
	pending []*sent
	conn    int64 // a new one after each failure
	busy    bool  // recovering from one
	pepoch  int16 // of the producer id
}

type sent struct {
	seq   int32
	n     int
	bytes []byte
	under bool
}

func (p *writer) run() {
	w := p.w
	w.loop.after(w.loop.between(w.o.pause/2, w.o.pause*3/2), &p.proc, p.run)
	if p.busy || len(p.pending) >= producer.Window || !w.writing {
		return
	}
	n := 1 + w.loop.rng.IntN(3)
	recs := make([]record.Record, n)
	for i := range recs {
		v := binary.BigEndian.AppendUint64(nil, uint64(p.pid))
		recs[i] = record.Record{OffsetDelta: int32(i), Value: binary.BigEndian.AppendUint32(v, uint32(p.seq)+uint32(i))}
	}
	h := record.NoProducer(w.loop.time().UnixMilli())
	h.ProducerID, h.ProducerEpoch, h.BaseSequence = p.pid, p.pepoch, p.seq
	p.pending = append(p.pending, &sent{seq: p.seq, n: n, bytes: record.Build(h, recs)})
	p.seq += int32(n)
	p.flush()
}

func (p *writer) flush() {
	for _, s := range p.pending {
		if !s.under {
			p.send(s)
		}
	}
}

func (p *writer) send(s *sent) {
	w := p.w
	b := w.brokers[p.leader]
	if b == nil {
		p.failed(s, nil)
		return
	}
	s.under = true
	conn := p.conn
	body := append([]byte(nil), s.bytes...)
	type result struct {
		r   partition.ProduceResult
		err error
	}
	w.net.ordered(&p.proc, &b.proc, conn, 3*time.Second, func(reply func(any)) {
		x := b.mgr.Get(p.name, p.index)
		if !b.serving || x == nil {
			reply(result{err: partition.ErrNotLeader})
			return
		}
		x.Produce(body, partition.ProduceOptions{Acks: p.acks, Timeout: 1500 * time.Millisecond}, func(r partition.ProduceResult, err error) {
			reply(result{r, err})
		})
	}, func(v any, err error) {
		if p.conn != conn {
			return
		}
		var r result
		if err == nil {
			r = v.(result)
			err = r.err
		}
		if err != nil {
			p.failed(s, err)
			return
		}
		for i, x := range p.pending {
			if x == s {
				p.pending = append(p.pending[:i:i], p.pending[i+1:]...)
				break
			}
		}
		if p.acks == -1 {
			w.check.acknowledged(p.topic, p.index, r.r.BaseOffset, s.n, sender(p.pid, p.pepoch), s.seq)
		}
		w.acked++
	})
}

// failed sends everything again, in order, on another connection and to whoever leads
// by then: that is what makes it idempotent.
func (p *writer) failed(s *sent, err error) {
	w := p.w
	// Behind others that are under way it only says that those came to nothing.
	if errors.Is(err, producer.ErrOutOfOrderSequence) && p.pending[0] == s {
		w.check.outOfOrder(p, err)
		// As clients do: what was not acknowledged is given up, and another id goes on.
		p.pending = nil
		w.pids++
		p.pid, p.seq = w.pids, 0
	}
	if w.pair != nil {
		w.pair.refused(p, s, err)
	}
	p.conn = w.connection()
	for _, s := range p.pending {
		s.under = false
	}
	if p.busy {
		return
	}
	p.busy = true
	p.learn(func() {
		w.loop.after(w.loop.between(20*time.Millisecond, 100*time.Millisecond), &p.proc, func() {
			p.busy = false
			p.flush()
		})
	})
}

// reader is a consumer that reads one partition from its beginning, again and again.
type reader struct {
	client
	at      int64
	last    int32 // epoch of the last record
	version int   // of the timeline it has read; -1: a deposed leader's, whichever that was
	curious bool  // asks for metadata now and then; others only when something fails
}

func (r *reader) run() {
	w := r.w
	b := w.brokers[r.leader]
	again := func(d time.Duration) { w.loop.after(d, &r.proc, r.run) }
	if b == nil || r.curious && w.loop.chance(0.1) {
		r.learn(func() { again(100 * time.Millisecond) })
		return
	}
	type result struct {
		res   partition.ReadResult
		bytes []byte
		end   int64
		err   error

		version int // in which it was true
	}
	list := w.loop.chance(0.2)
	w.net.call(&r.proc, &b.proc, time.Second, func(reply func(any)) {
		x := b.mgr.Get(r.name, r.index)
		var out result
		switch {
		case !b.serving || x == nil:
			out.err = partition.ErrNotLeader
		case list:
			out.end, _, _, out.err = x.ListOffset(partition.Latest, partition.ReadUncommitted, r.epoch)
			if out.err == nil {
				w.check.endTold(b, r.topic, r.index, out.end)
			}
		default:
			out.res, out.err = x.Read(partition.ReadRequest{Offset: r.at, MaxBytes: 1 << 14, AtLeastOne: true, CurrentLeaderEpoch: r.epoch, LastFetchedEpoch: r.last})
			if out.err == nil {
				out.bytes = make([]byte, out.res.View.Len())
				if _, err := out.res.View.ReadAt(out.bytes, 0); err != nil && !errors.Is(err, io.EOF) {
					w.check.fail("READ", "a view cannot be read: %v", err)
				}
			}
			out.version = w.check.served(b, r, out.res, out.bytes, out.err)
		}
		reply(out)
	}, func(v any, err error) {
		out, _ := v.(result)
		if err == nil {
			err = out.err
		}
		if err != nil {
			if v := w.check.version(r.topic, r.index); v != r.version || errors.Is(err, partition.ErrOutOfRange) {
				r.version, r.at, r.last = v, max(0, out.res.LogStart), -1
			}
			r.learn(func() { again(w.loop.between(50*time.Millisecond, 150*time.Millisecond)) })
			return
		}
		if out.res.Diverging != nil {
			r.at, r.last = 0, -1
		}
		if !list && (len(out.bytes) > 0 || r.version < 0) {
			// Whoever answers has compared what the reader has with its own log.
			r.version = out.version
		}
		for rest := out.bytes; len(rest) > 0; {
			batch, next, err := record.Next(rest)
			if err != nil {
				w.check.fail("READ", "served bytes are no batches: %v", err)
				break
			}
			rest = next
			r.at, r.last = batch.NextOffset(), batch.PartitionLeaderEpoch()
			w.read++
		}
		again(w.loop.between(w.o.pause, 3*w.o.pause))
	})
}
