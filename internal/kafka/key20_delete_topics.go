package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DeleteTopics (v1-v6)
//
// Behavior:
//   - Each topic succeeds or fails by itself. A topic of a mirror that is not
//     stopped is refused with 145 (spec 10.5).
//   - Needs Delete on the cluster or on the topic.
//
// Version notes:
//   - v4: flexible
//   - v5: error message; THROTTLING_QUOTA_EXCEEDED as in CreateTopics v6 (KIP-599)
//   - v6: by name or by id (KIP-516)
func (s *Server) registerDeleteTopics() {
	s.register(20, 1, 6, s.deleteTopics)
}

func (s *Server) deleteTopics(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DeleteTopicsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	img := s.o.Controller.Image()
	asked := req.Topics
	if req.Version < 6 {
		asked = asked[:0:0]
		for i := range req.TopicNames {
			t := kmsg.NewDeleteTopicsRequestTopic()
			t.Topic = &req.TopicNames[i]
			asked = append(asked, t)
		}
	}
	every := s.visible(r, authz.Delete, authz.Cluster, authz.ClusterName)
	var ids []metadata.TopicID
	var at []int
	seen := map[metadata.TopicID]bool{}
	for i := range asked {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID = asked[i].Topic, asked[i].TopicID
		t, err := topicToDelete(img, &asked[i])
		if name := asked[i].Topic; t != nil || errors.Is(err, errUnknownPartition) {
			// The name of a topic that was given by its id is told to those who may
			// see it.
			if t != nil && name == nil && s.visible(r, authz.Describe, authz.Topic, t.Name) {
				out.Topic = &t.Name
			}
			if of := topicName(t, orEmpty(name)); !s.mayDelete(r, of, every, t == nil) {
				t, err = nil, errTopicDenied
			}
		}
		if err == nil && seen[t.ID] {
			err = fmt.Errorf("%w: topic %q is named more than once", controller.ErrInvalidRequest, t.Name)
		}
		if err == nil {
			err = s.mutate(r, len(t.Partitions), req.Version >= 5)
		}
		if err == nil {
			name := t.Name
			out.Topic, out.TopicID = &name, t.ID
			seen[t.ID] = true
			ids, at = append(ids, t.ID), append(at, i)
		}
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		resp.Topics = append(resp.Topics, out)
	}
	if len(ids) > 0 {
		for i, res := range s.o.Controller.DeleteTopics(r.ctx, ids) {
			out := &resp.Topics[at[i]]
			out.ErrorCode, out.ErrorMessage = errorCode(res.Err)
		}
		s.settle(r.ctx)
	}
	return resp, nil
}

// mayDelete tells whether the client may delete the topic; of one that does not
// exist it may know that from Describe on.
func (s *Server) mayDelete(r *request, name string, every, missing bool) bool {
	if !every && missing && s.visible(r, authz.Describe, authz.Topic, name) {
		return true
	}
	return s.allowedOr(r, every, authz.Delete, authz.Topic, name)
}

func topicToDelete(img *metadata.Image, in *kmsg.DeleteTopicsRequestTopic) (*metadata.Topic, error) {
	id := metadata.TopicID(in.TopicID)
	switch {
	case in.Topic != nil && !id.IsZero():
		return nil, fmt.Errorf("%w: topic %q is given by name and by id", controller.ErrInvalidRequest, *in.Topic)
	case in.Topic != nil:
		if t := img.Topic(*in.Topic); t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("%w: %q", errUnknownPartition, *in.Topic)
	case !id.IsZero():
		if t := img.TopicByID(id); t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("%w: %s", errUnknownTopicID, id)
	}
	return nil, fmt.Errorf("%w: a topic without name and id", controller.ErrInvalidRequest)
}
