package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// BenchmarkFence is how long it takes until a broker that leads a third of 5 000
// partitions, and follows the rest, is out of all of them: decided alone, and written
// to the store too. Transactions hold 1023 partitions.
func BenchmarkFence(b *testing.B) {
	const partitions = 5_000
	for _, store := range []bool{false, true} {
		b.Run(fmt.Sprintf("store=%t", store), func(b *testing.B) {
			c, err := Open(b.Context(), Options{Dir: b.TempDir(), KeyFile: b.TempDir() + "/key", NodeID: 9, SessionTimeout: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			beat := func(id int32, fence bool) {
				hb := Heartbeat{Broker: id, Epoch: epochOf(c.Image(), id).Epoch, Revision: c.Image().Revision, WantFence: fence}
				if _, err := c.Heartbeat(b.Context(), hb); err != nil {
					b.Fatal(err)
				}
			}
			for id := range int32(3) {
				if _, err := c.RegisterBroker(b.Context(), RegisterBroker{ID: id, Incarnation: [16]byte{1}, PreviousEpoch: -1}); err != nil {
					b.Fatal(err)
				}
				beat(id, false)
			}
			for i := range 10 {
				if r := c.CreateTopics(b.Context(), []CreateTopic{{Name: fmt.Sprint("t", i), Partitions: partitions / 10, ReplicationFactor: 3}}, false); r[0].Err != nil {
					b.Fatal(r[0].Err)
				}
			}
			fence := fenceBrokers{[]BrokerEpoch{epochOf(c.Image(), 1)}, c.defaults()}
			for b.Loop() {
				if !store {
					changes, err := Decide(c.Image(), fence)
					if err != nil || partitionsIn(changes) != partitions {
						b.Fatal(len(changes), err)
					}
					continue
				}
				beat(1, true)
				b.StopTimer()
				beat(1, false)
				rejoin(b, c)
				b.StartTimer()
			}
		})
	}
}

// rejoin lets the leaders take broker 1 back.
func rejoin(b *testing.B, c *Controller) {
	wishes := make(map[int32][]AlterISR)
	for t := range c.Image().AllTopics() {
		for _, p := range t.Partitions {
			w := AlterISR{Topic: t.ID, Partition: p.Index, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
			for _, id := range p.Replicas {
				w.ISR = append(w.ISR, ISRMember{id, -1})
			}
			wishes[p.Leader] = append(wishes[p.Leader], w)
		}
	}
	for leader, list := range wishes {
		if leader == metadata.NoLeader {
			b.Fatal("a partition without a leader")
		}
		for _, r := range c.AlterISRs(b.Context(), leader, epochOf(c.Image(), leader).Epoch, list) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
}
