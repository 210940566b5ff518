package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// registerGroups adds the keys of consumer groups, of the classic and of the
// consumer protocol (KIP-848).
func (s *Server) registerGroups() {
	if s.o.Groups == nil {
		return
	}
	s.registerOffsetCommit()
	s.registerOffsetFetch()
	s.registerFindCoordinator()
	s.registerJoinGroup()
	s.registerHeartbeat()
	s.registerLeaveGroup()
	s.registerSyncGroup()
	s.registerDescribeGroups()
	s.registerListGroups()
	s.registerDeleteGroups()
	s.registerOffsetDelete()
	if s.o.Transactions != nil {
		s.registerTxnOffsetCommit()
	}
	s.registerConsumerGroupHeartbeat()
	s.registerConsumerGroupDescribe()
}

// groupCode is errorCode for the keys of groups.
func groupCode(err error) int16 {
	code, _ := errorCode(err)
	return code
}

// gaveUp tells an answer nobody waits for any more: the connection ends. The
// group goes on with what was asked.
func gaveUp(r *request, err error) bool {
	return err != nil && r.ctx.Err() != nil &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// orNil is the wire's form of a string whose absence is null.
func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// topicNames finds topics by name or, from the versions that name them so, by
// id.
type topicNames struct {
	img  *metadata.Image
	byID bool
}

// find is a requested topic's name and, if the cluster lacks it, the code to
// answer for its partitions.
func (n topicNames) find(name string, id [16]byte) (*metadata.Topic, string, int16) {
	if n.byID {
		t := n.img.TopicByID(metadata.TopicID(id))
		if t == nil {
			return nil, "", kerr.UnknownTopicID.Code
		}
		return t, t.Name, 0
	}
	t := n.img.Topic(name)
	if t == nil {
		return nil, name, kerr.UnknownTopicOrPartition.Code
	}
	return t, name, 0
}
