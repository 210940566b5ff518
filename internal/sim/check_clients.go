package sim

import (
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// What clients were told, and what they read.

// acknowledged hears what a producer was told with acks=all.
func (c *checker) acknowledged(topic metadata.TopicID, index int32, base int64, n int, pid int64, seq int32) {
	g := c.ghost(segment.LogID{Topic: topic, Partition: index})
	c.acked++
	c.looked("GI-40")
	from := sequence{pid, seq}
	at, ok := g.seen[from]
	if g.version > 0 && !ok {
		return // a cut may have come before the answer did
	}
	if !g.committedAt(base, from) {
		c.fail("GI-40", "%v: batch %v was acknowledged at %d and is committed at %d (%v)", g, from, base, at, ok)
		return
	}
	g.acks = append(g.acks, acked{base, base + int64(n), from})
}

// outOfOrder hears of a producer that was refused, because the broker lacks batches.
func (c *checker) outOfOrder(p *writer, err error) {
	g := c.ghost(segment.LogID{Topic: p.topic, Partition: p.index})
	c.looked("GI-52")
	if at, ok := g.seen[sequence{sender(p.pid, p.pepoch), p.pending[0].seq}]; ok && at < g.start {
		return // it was committed and deleted; a replica that begins behind it never heard of it
	}
	if p.acks == -1 && g.version == 0 && !g.replicated && (g.m == nil || !g.m.ever) && p.pending[0].seq > 0 {
		// Sessions begin amid faults. Until the first batch is in the log, one behind it may
		// get there before it: late on an old connection, or when too few were in sync for
		// the first, and enough a moment later. As in Apache Kafka a log takes any sequence of
		// a producer that it does not know.
		c.fail("GI-52", "%v: a producer with acks=all that lost nothing is refused: %v", g, err)
	}
}

// endTold hears of an end offset that a client was given (GI-13).
func (c *checker) endTold(b *broker, topic metadata.TopicID, index int32, end int64) {
	g := c.ghost(segment.LogID{Topic: topic, Partition: index})
	p := c.w.store.image().Partition(topic, index)
	if p == nil {
		return
	}
	if x := b.mgr.ByID(topic, index); g.version > 0 && (p.Leader != b.id || x == nil || x.Info().LeaderEpoch != p.LeaderEpoch) {
		return // it does not know yet that it was deposed, or of the topic's new life
	}
	c.looked("GI-13 end")
	if end < g.told {
		c.fail("GI-13", "%v: broker %d tells end offset %d after %d was told", g, b.id, end, g.told)
	}
	g.told = end
}

// served hears of each answer to a consumer (GI-14), and tells in which version of the
// timeline it was true: -1 for that of a leader that does not know that it was deposed,
// or a broker that is not the leader.
func (c *checker) served(b *broker, r *reader, res partition.ReadResult, bytes []byte, err error) (version int) {
	g := c.ghost(segment.LogID{Topic: r.topic, Partition: r.index})
	version = g.version
	if g.version > 0 {
		if p := c.w.store.image().Partition(r.topic, r.index); p == nil || p.LeaderEpoch != res.LeaderEpoch {
			version = -1
		}
	}
	stale := version < 0 || version != r.version
	c.looked("GI-14 read")
	if errors.Is(err, partition.ErrOutOfRange) && !stale && r.at >= res.LogStart {
		c.fail("GI-14", "%v: broker %d in epoch %d refuses a consumer at %d: %v", g, b.id, res.LeaderEpoch, r.at, err)
	}
	if res.Diverging != nil && !stale {
		c.fail("GI-14", "%v: broker %d in epoch %d tells a consumer at %d, epoch %d, that histories part: %+v", g, b.id, res.LeaderEpoch, r.at, r.last, *res.Diverging)
	}
	for rest := bytes; len(rest) > 0; {
		batch, next, err := record.Next(rest)
		if err != nil {
			c.fail("GI-14", "%v: broker %d serves bytes that are no batches: %v", g, b.id, err)
			break
		}
		rest = next
		t, ok := g.endingAt(batch.NextOffset())
		if batch.NextOffset() > res.HighWatermark || !stale && (!ok || t.base != batch.BaseOffset() || t.epoch != batch.PartitionLeaderEpoch() || t.from != (sequence{sender(batch.ProducerID(), batch.ProducerEpoch()), batch.BaseSequence()})) {
			c.fail("GI-14", "%v: broker %d in epoch %d serves batch %d to %d of epoch %d, high watermark %d, which is not what was committed", g, b.id, res.LeaderEpoch, batch.BaseOffset(), batch.NextOffset(), batch.PartitionLeaderEpoch(), res.HighWatermark)
			break
		}
	}
	return version
}
