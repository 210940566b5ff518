package kafka

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/isr"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// Consumers that say where they are (client.rack) are sent to a replica there
// (KIP-392). The leader says so in its answer, which has no records then; the client
// fetches from that replica until its metadata are due, or until that one does not
// have what it asks for. Whether a broker answers as a follower is not a question of
// this setting: it does, from version 11 of Fetch on, as Kafka's does.

// minAnyReplicaFetch is the first version whose clients know of other replicas than
// the leader.
const minAnyReplicaFetch = 11

// readableReplica is one replica that has what a consumer asks for.
type readableReplica struct {
	id       int32
	rack     string
	end      int64
	caughtUp time.Time
}

// rackAware is Kafka's RackAwareReplicaSelector: the leader if it is in the client's
// rack, or nobody is; else of those who are there the one that has most, and of these
// the one that was caught up last.
func rackAware(rack string, leader int32, replicas []readableReplica) int32 {
	var best *readableReplica
	for i := range replicas {
		r := &replicas[i]
		switch {
		case r.rack != rack:
		case r.id == leader:
			return leader
		case best == nil || r.end > best.end || r.end == best.end && r.caughtUp.After(best.caughtUp):
			best = r
		}
	}
	if best == nil {
		return leader
	}
	return best.id
}

// preferredReplica is whom a consumer in rack should ask for what is at offset, -1: this
// broker.
func (s *Server) preferredReplica(c *conn, img *metadata.Image, p *partition.Partition, rack string, offset int64) int32 {
	states := p.Replicas()
	if len(states) < 2 {
		return -1
	}
	var replicas []readableReplica
	for _, st := range states {
		b := img.Broker(st.ID)
		if b == nil || b.Fenced || !has(st, offset) && st.ID != s.o.NodeID {
			continue
		}
		if _, ok := c.listener.endpointOf(b); !ok {
			continue
		}
		replicas = append(replicas, readableReplica{st.ID, b.Rack, st.End, st.CaughtUp})
	}
	if id := rackAware(rack, s.o.NodeID, replicas); id != s.o.NodeID {
		return id
	}
	return -1
}

// has tells whether a follower's log has an offset, or ends there.
func has(st isr.State, offset int64) bool { return st.End >= offset && st.Start <= offset }
