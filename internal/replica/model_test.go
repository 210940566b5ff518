package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// fetch is one fetch of a follower and all that follows from it, as a fetcher does
// it, over calls.
func (c *cluster) fetch(n *node, maxBytes int) {
	c.t.Helper()
	meta := n.seen.TopicByID(topicID).Partitions[0]
	if meta.Leader < 0 || meta.Leader == n.id {
		return
	}
	f := n.p().Follower(func() {}, func() {})
	end, last := f.LogEnd()
	_, durable := f.Ends()
	epoch := meta.LeaderEpoch
	got := c.read(n.id, meta.Leader, n.seen.Broker(n.id).Epoch, partition.ReadRequest{
		Offset: end, MaxBytes: maxBytes, AtLeastOne: true, CurrentLeaderEpoch: epoch, LastFetchedEpoch: last,
	}, durable)
	var err error
	switch {
	case errors.Is(got.err, partition.ErrOutOfRange):
		_, err = f.Restart(epoch, got.LogStart)
	case got.err != nil: // fenced, or one of them has older metadata
	case got.Diverging != nil:
		_, err = f.Truncate(epoch, *got.Diverging)
	default:
		good, bad := pipeline.VerifyMirror(got.records, &pipeline.VerifyState{NextOffset: end, LastEpoch: last, MaxEpoch: epoch})
		if bad != nil {
			c.t.Fatalf("broker %d gets at %d: %v", n.id, end, bad)
		}
		if good > 0 {
			_, err = f.MirrorAppend(epoch, got.records[:good])
		}
		if err == nil {
			f.FollowHighWatermark(epoch, got.HighWatermark)
		}
	}
	if err != nil {
		c.t.Fatalf("broker %d in epoch %d: %v", n.id, epoch, err)
	}
}

// alive says that the controller takes a broker for alive.
func (c *cluster) alive(id int32) bool { return c.image.Broker(id).Eligible() }

// fence is what the controller does when a session ends.
func (c *cluster) fence(id int32) {
	c.change(func(e *metadata.Editor) {
		b := *c.image.Broker(id)
		b.Fenced = true
		e.PutBroker(&b)
	})
	c.alter(func(p *metadata.Partition) {
		if len(p.ISR) > 1 {
			p.ISR = slices.DeleteFunc(p.ISR, func(m int32) bool { return m == id })
		}
		if p.Leader == id {
			c.choose(p)
		}
	})
}

// choose elects cleanly: somebody in the ISR who lives, or nobody.
func (c *cluster) choose(p *metadata.Partition) {
	p.Leader, p.LeaderEpoch = -1, p.LeaderEpoch+1
	for _, id := range p.ISR {
		if c.alive(id) {
			p.Leader = id
			return
		}
	}
}

// admit is what it does when a broker comes back.
func (c *cluster) admit(id int32) {
	c.change(func(e *metadata.Editor) {
		b := *c.image.Broker(id)
		b.Fenced, b.Epoch = false, b.Epoch+1
		e.PutBroker(&b)
	})
	if meta := c.meta(); meta.Leader < 0 && slices.Contains(meta.ISR, id) {
		c.alter(c.choose)
	}
}

// Nothing that was acknowledged is lost: three replicas, two of which have to be in
// sync; brokers lose their power with all, some or nothing of what was not synced,
// stop hearing of the metadata, come back; leaders change. Whoever is elected has
// every acknowledged record, and in the end everybody has, at its offset.
func TestAcknowledgedIsNotLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(t, false, map[string]string{"min.insync.replicas": "2", "durability": "fsync"}, 1, 2, 3)
		defer func() {
			for _, n := range c.nodes {
				if n.up {
					n.stop()
				}
			}
		}()
		type write struct {
			value string
			c     chan answer
		}
		var pending []write
		acked := map[int64]string{}
		written := 0
		collect := func() {
			left := pending[:0]
			for _, w := range pending {
				select {
				case a := <-w.c:
					if a.err == nil {
						if other, twice := acked[a.offset]; twice {
							rt.Fatalf("offset %d was given to %s and to %s", a.offset, other, w.value)
						}
						acked[a.offset] = w.value
					}
				default:
					left = append(left, w)
				}
			}
			pending = left
		}
		has := func(n *node) error {
			contents := n.contents()
			for offset, value := range acked {
				if _, got, _ := strings.Cut(contents[offset], ":"); got != value {
					return fmt.Errorf("broker %d has %q at offset %d, %q was acknowledged; it ends at %d; metadata %+v", n.id, contents[offset], offset, value, len(contents), *c.meta())
				}
			}
			return nil
		}
		check := func() {
			collect()
			meta := c.meta()
			if n := c.nodes[meta.Leader]; n != nil && n.up && n.seen == c.image {
				if err := has(n); err != nil {
					rt.Fatal(err)
				}
			}
		}
		pick := func(t *rapid.T) *node { return c.nodes[rapid.Int32Range(1, 3).Draw(t, "broker")] }
		decide := func() {
			for {
				select {
				case p := <-c.asked:
					c.decide(p)
				case <-time.After(time.Millisecond): // the keepers' goroutines need the processor
					return
				}
			}
		}
		leaders := func() (out []*node) { // those who take themselves for one
			for _, n := range c.nodes {
				if n.up && n.seen.TopicByID(topicID).Partitions[0].Leader == n.id {
					out = append(out, n)
				}
			}
			slices.SortFunc(out, func(a, b *node) int { return int(a.id - b.id) })
			return out
		}
		produce := func(acks int16) {
			if all := leaders(); len(all) > 0 {
				n := rapid.SampledFrom(all).Draw(rt, "leader")
				value := fmt.Sprint(written)
				written++
				if answer := n.produce(value, acks); acks == -1 { // 1 promises nothing
					pending = append(pending, write{value, answer})
				}
			}
		}
		fetch := func(n *node) {
			if n.up {
				c.fetch(n, rapid.SampledFrom([]int{1, 200, 1 << 20}).Draw(rt, "bytes"))
			}
		}
		flush := func(n *node) {
			if n.up {
				_ = n.p().Flush(rt.Context()) // a failed one has its own tests
			}
		}
		lose := func(n *node) {
			if n.up {
				n.deaf = false
				n.cut(rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "percent"), rapid.Uint64().Draw(rt, "seed"))
			}
		}
		actions := []struct {
			weight int
			name   string
			do     func()
		}{
			{8, "produce", func() { produce(-1) }},
			{3, "produce unconfirmed", func() { produce(1) }},
			{12, "fetch", func() { fetch(pick(rt)) }},
			{6, "everybody fetches", func() {
				for id := range int32(3) {
					flush(c.nodes[id+1])
					fetch(c.nodes[id+1])
				}
			}},
			{4, "flush", func() { flush(pick(rt)) }},
			{5, "controller", decide},
			{2, "elect", func() {
				id := rapid.Int32Range(1, 3).Draw(rt, "broker")
				if meta := c.meta(); meta.Leader != id && slices.Contains(meta.ISR, id) && c.alive(id) {
					c.elect(id)
				}
			}},
			{2, "power cut", func() {
				if n := pick(rt); n.up {
					lose(n)
					c.fence(n.id)
				}
			}},
			{1, "all lose power", func() {
				for id := range int32(3) {
					lose(c.nodes[id+1])
				}
				for id := range int32(3) {
					c.fence(id + 1)
				}
			}},
			{5, "come back", func() {
				if n := pick(rt); !n.up {
					n.start()
					c.admit(n.id)
				}
			}},
			{1, "cut off", func() {
				if n := pick(rt); n.up && !n.deaf {
					n.deaf = true
					c.fence(n.id)
				}
			}},
			{3, "heard of", func() {
				if n := pick(rt); n.up && n.deaf {
					n.deaf = false
					n.follow()
					c.admit(n.id)
				}
			}},
		}
		var weighted []int
		for i, a := range actions {
			weighted = append(weighted, slices.Repeat([]int{i}, a.weight)...)
		}
		for range rapid.IntRange(20, 150).Draw(rt, "steps") {
			a := actions[rapid.SampledFrom(weighted).Draw(rt, "action")]
			rt.Log(a.name)
			a.do()
			check()
		}
		for _, n := range c.nodes {
			if !n.up {
				n.start()
				c.admit(n.id)
			} else if n.deaf {
				n.deaf = false
				n.follow()
				c.admit(n.id)
			}
		}
		deadline := time.Now().Add(20 * time.Second)
		for done := false; !done; {
			for _, n := range c.nodes {
				c.fetch(n, 1<<20)
			}
			decide()
			done = len(c.meta().ISR) == 3 && c.equal(1, 2, 3)
			if time.Now().After(deadline) {
				rt.Fatalf("the replicas do not become equal: %+v, %v %v %v", *c.meta(), c.nodes[1].contents(), c.nodes[2].contents(), c.nodes[3].contents())
			}
		}
		check()
	})
}
