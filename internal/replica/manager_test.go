package replica

import (
	"fmt"
	"maps"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func (c *cluster) equal(ids ...int32) bool {
	first := c.nodes[ids[0]].contents()
	for _, id := range ids[1:] {
		if !maps.Equal(first, c.nodes[id].contents()) {
			return false
		}
	}
	return true
}

// The whole of it: three replicas, acks=all over all disks, a leader that dies with
// records that nobody else has, its return as a follower of another epoch.
func TestReplicates(t *testing.T) {
	for _, durability := range []string{"fsync", "replicated"} {
		t.Run(durability, func(t *testing.T) {
			c := newCluster(t, true, map[string]string{"min.insync.replicas": "2", "durability": durability}, 1, 2, 3)
			for i := range 50 {
				if a := c.wait(c.nodes[1].produce(fmt.Sprint(i), -1)); a.err != nil || a.offset != int64(i) {
					t.Fatalf("%+v", a)
				}
			}
			c.until("replicas are equal", func() bool { return c.equal(1, 2, 3) })
			c.until("followers know what is committed", func() bool {
				return c.nodes[2].p().HighWatermark() == 50 && c.nodes[3].p().HighWatermark() == 50
			})

			// The leader writes two that nobody sees, and is replaced.
			c.nodes[2].stop()
			c.nodes[3].stop()
			for range 2 {
				<-c.nodes[1].produce("lost", 1)
			}
			c.nodes[1].stop()
			c.alter(func(p *metadata.Partition) { p.ISR, p.Leader, p.LeaderEpoch = []int32{2, 3}, 2, p.LeaderEpoch+1 })
			c.nodes[2].start()
			c.nodes[3].start()
			if a := c.wait(c.nodes[2].produce("kept", -1)); a.err != nil || a.offset != 50 {
				t.Fatalf("%+v", a)
			}
			c.nodes[1].start()
			c.until("the old leader is back in sync", func() bool { return len(c.meta().ISR) == 3 })
			c.until("replicas are equal", func() bool { return c.equal(1, 2, 3) })
			if got := c.nodes[1].contents(); got[50] != "2:kept" || len(got) != 51 {
				t.Fatalf("%v", got)
			}
		})
	}
}

// A replica that the metadata give to another broker is removed, also when that
// happened while its broker was down; the others stay.
func TestRemovesReassignedReplicas(t *testing.T) {
	c := newCluster(t, true, nil, 1, 2, 3)
	c.wait(c.nodes[1].produce("a", -1))
	c.nodes[3].stop()
	c.alter(func(p *metadata.Partition) { p.Replicas, p.ISR = []int32{1}, []int32{1} })
	if c.nodes[2].p() != nil {
		t.Fatal("broker 2 still has a replica")
	}
	c.nodes[3].start()
	if c.nodes[3].p() != nil {
		t.Fatal("broker 3 opened a replica that is not its own")
	}
	for _, id := range []int32{2, 3} {
		if names, _ := c.nodes[id].fs.List("data/logs"); len(names) != 0 {
			t.Errorf("broker %d: %v", id, names)
		}
	}
	if names, _ := c.nodes[1].fs.List("data/logs"); len(names) != 1 {
		t.Errorf("broker 1: %v", names)
	}
}
