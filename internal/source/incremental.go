package source

import (
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// incremental is our half of an incremental fetch session (KIP-227): the
// source remembers the partitions of the last request, and each further request
// and response carries only what changed. Without it one busy partition among
// 2 000 idle ones would make every request and response list them all.
//
// The half is kept per connection and dies with it. The source may refuse to
// remember (its cache is full) or forget; then the next request is a full one.
type incremental struct {
	id      int32 // 0: the source keeps no session for us
	epoch   int32 // of the next request; 0 is a full one
	version int16 // of the requests in this session: names or ids
	replica bool  // of a follower: partitions tell what is on its disk

	// sent is what the source knows, by partition. round marks the entries of
	// the request being built, to find those that fell out.
	sent  map[sdk.PartitionKey]*sentPartition
	round uint64
}

type sentPartition struct {
	last  sdk.FetchPartition
	round uint64
}

// reset makes the next request a full one. An id that is kept tells the source
// to drop the session we had.
func (s *incremental) reset() { s.epoch = 0 }

// fill writes the partitions of req that the source does not know yet into r,
// and those it should forget.
func (s *incremental) fill(r *kmsg.FetchRequest, req *sdk.FetchRequest, version int16) {
	if s.version != version {
		s.reset() // a session is by name or by id, never both
		s.version = version
	}
	if s.sent == nil {
		s.sent = map[sdk.PartitionKey]*sentPartition{}
	}
	r.SessionID, r.SessionEpoch = s.id, s.epoch
	r.Topics, r.ForgottenTopics = r.Topics[:0], r.ForgottenTopics[:0]
	s.round++
	full := s.epoch == 0
	for i := range req.Partitions {
		p := &req.Partitions[i]
		known, ok := s.sent[p.PartitionKey]
		if !ok {
			known = &sentPartition{}
			s.sent[p.PartitionKey] = known
		}
		if full || !ok || known.last != *p {
			known.last = *p
			addPartition(r, p)
			if s.replica {
				tagDurable(r, p.DurableEnd)
			}
		}
		known.round = s.round
	}
	if len(s.sent) > len(req.Partitions) {
		s.forget(r)
	}
}

func (s *incremental) forget(r *kmsg.FetchRequest) {
	for key, known := range s.sent {
		if known.round == s.round {
			continue
		}
		delete(s.sent, key)
		if s.epoch == 0 {
			continue // a full request replaces everything
		}
		t := kmsg.NewFetchRequestForgottenTopic()
		t.Topic, t.TopicID, t.Partitions = key.Topic, key.TopicID, []int32{key.Partition}
		r.ForgottenTopics = append(r.ForgottenTopics, t)
	}
}

// answered takes over what a good response says about the session.
func (s *incremental) answered(id int32) {
	s.id = id
	if id == 0 {
		s.reset()
		return
	}
	if s.epoch == math.MaxInt32 {
		s.epoch = 0
	}
	s.epoch++
}
