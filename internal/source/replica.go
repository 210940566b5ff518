package source

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Replica is who fetches in a session between brokers of one cluster.
type Replica struct {
	ID    int32
	Epoch func() int64 // of its registration, -1 while there is none
}

const (
	// minReplicaFetch is the first Fetch version that tells the broker epoch (KIP-903).
	minReplicaFetch = 15
	// tagDurable is the private tagged field of a request's partition that tells
	// where the part of the log ends that is on disk (internal/kafka reads it).
	tagDurableEnd = 10001
	// nudgeID is the correlation id of interruptions; requests count up from 1.
	nudgeID     = -2
	keyVersions = 18
)

// NewReplicaSession fetches over a connection to a broker of our own cluster, as a
// follower does: up to the end of the leader's log. timeout bounds an answer beyond
// the time that a request lets it wait. The session is a pipeline.Interrupter. It
// owns the connection; its errors are *Error.
func NewReplicaSession(client *wire.Client, clientID string, timeout time.Duration, r Replica) (sdk.Session, error) {
	low, high, ok := client.Versions(keyFetch)
	if !ok || low > maxFetchVersion || high < minReplicaFetch {
		client.Close()
		return nil, fail(client.Addr(), "connect", fmt.Errorf("Fetch versions %d to %d, replicas speak %d to %d: %w",
			low, high, minReplicaFetch, maxFetchVersion, wire.ErrUnsupported))
	}
	s := newKafkaSession(client.Conn(), client.Addr(), clientID, low, high, timeout)
	s.replica, s.session.replica = &r, true
	versions := kmsg.NewPtrApiVersionsRequest()
	s.writing.nudged = wire.AppendRequest(nil, nudgeID, clientID, versions)
	return s, nil
}

// Interrupt ends the long poll that is under way, or the next one: a leader answers it as soon as it sees
// another request behind it, whatever that is.
func (s *kafkaSession) Interrupt() {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.replica == nil || s.writing.poked {
		return
	}
	s.writing.poked = true
	if s.writing.under {
		_, _ = s.conn.Write(s.writing.nudged) // where it fails, the fetch does too
	}
}

// tagDurable puts the durable end to the partition that was added last.
func tagDurable(r *kmsg.FetchRequest, end int64) {
	if end < 0 {
		return
	}
	t := &r.Topics[len(r.Topics)-1]
	t.Partitions[len(t.Partitions)-1].UnknownTags.Set(tagDurableEnd, binary.BigEndian.AppendUint64(nil, uint64(end)))
}
