package kafka

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Metadata (v0-v13)
//
// Behavior:
//   - Answers from the metadata image. Brokers are named by the address of the
//     listener that the request came in on; fenced ones are left out.
//   - The controller is the broker that has the office, or this one: each passes
//     on what is the controller's.
//   - A topic asked for by name that does not exist is created when both the
//     client and auto.create.topics.enable allow it. The answer then still says
//     LEADER_NOT_AVAILABLE if the partitions are not led yet.
//   - Topics need Describe: those asked for are refused, whether they exist or
//     not, and "all" leaves them out. Creation needs Create on the cluster or
//     the topic.
//
// Version notes:
//   - v0: an empty list asks for all topics; from v1 on null does
//   - v4: allow_auto_topic_creation
//   - v7: leader epochs
//   - v8: authorized operations (KIP-430), v11 drops those of the cluster
//   - v9: flexible
//   - v10: topic ids in the answer, v12: and in the question (KIP-516)
//   - v13: error code for the whole answer
func (s *Server) registerMetadata() {
	s.register(3, 0, 13, s.metadata)
}

func (s *Server) metadata(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.MetadataRequest)
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	var unmade map[string]bool
	if s.o.AutoCreateTopics && (req.Version < 4 || req.AllowAutoTopicCreation) {
		unmade = s.autoCreate(r, req)
	}
	img := s.o.Controller.Image()
	for _, n := range s.nodes(r.conn, nil) {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = n.id, n.host, n.port, n.rack
		resp.Brokers = append(resp.Brokers, b)
	}
	if img.ClusterID != "" {
		resp.ClusterID = &img.ClusterID
	}
	resp.ControllerID = s.controllerBroker(img)

	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		for _, t := range img.Topics() {
			if s.visible(r, authz.Describe, authz.Topic, t.Name) {
				resp.Topics = append(resp.Topics, describeTopic(img, t))
			}
		}
	} else {
		for i := range req.Topics {
			resp.Topics = append(resp.Topics, s.metadataTopic(r, img, &req.Topics[i], unmade))
		}
	}
	s.metadataOperations(r, req, resp)
	return resp, nil
}

// metadataOperations fills in what the client may do, where it asks (KIP-430).
func (s *Server) metadataOperations(r *request, req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
	if v := req.Version; v >= 8 && v <= 10 && req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = s.clusterOperations(r)
	}
	if req.Version < 8 || !req.IncludeTopicAuthorizedOperations {
		return
	}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.ErrorCode == 0 && t.Topic != nil {
			t.AuthorizedOperations = s.operations(r, authz.Topic, *t.Topic)
		}
	}
}

func (s *Server) metadataTopic(r *request, img *metadata.Image, in *kmsg.MetadataRequestTopic, unmade map[string]bool) kmsg.MetadataResponseTopic {
	var t *metadata.Topic
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID = in.Topic, in.TopicID
	code := kerr.UnknownTopicOrPartition.Code
	if id := metadata.TopicID(in.TopicID); !id.IsZero() {
		t, code = img.TopicByID(id), kerr.UnknownTopicID.Code
		if t != nil && !s.allowedTopic(r, authz.Describe, t.Name) {
			// As Kafka: the id is no secret, as nobody guesses it; the name is.
			out.Topic = nil
			out.ErrorCode, _ = errorCode(errTopicDenied)
			return out
		}
	} else if in.Topic != nil {
		if unmade[*in.Topic] || !s.allowedTopic(r, authz.Describe, *in.Topic) {
			out.ErrorCode, _ = errorCode(errTopicDenied)
			return out
		}
		if t = img.Topic(*in.Topic); t == nil && !validTopicName(*in.Topic) {
			code = kerr.InvalidTopicException.Code
		}
	}
	if t != nil {
		return describeTopic(img, t)
	}
	out.ErrorCode = code
	return out
}

// maxAutoCreate bounds what one request may bring about; a client that really
// uses more topics asks again for those that are still missing.
const maxAutoCreate = 100

// autoCreate makes the named topics that are missing. A failure needs no
// answer of its own: the topic is still unknown then, and the log says why. The
// answer has those that the client may see and not create.
func (s *Server) autoCreate(r *request, req *kmsg.MetadataRequest) (unmade map[string]bool) {
	img := s.o.Controller.Image()
	var create []controller.CreateTopic
	for i := range req.Topics {
		if len(create) == maxAutoCreate {
			break
		}
		name := req.Topics[i].Topic
		if name == nil || !validTopicName(*name) || img.Topic(*name) != nil || metadata.TopicID(req.Topics[i].TopicID) != (metadata.TopicID{}) {
			continue
		}
		if slices.ContainsFunc(create, func(c controller.CreateTopic) bool { return c.Name == *name }) {
			continue
		}
		if strings.HasPrefix(*name, "__") {
			continue // internal topics are made by their owners, with their own settings
		}
		if !s.visible(r, authz.Describe, authz.Topic, *name) {
			continue
		}
		if !s.visible(r, authz.Create, authz.Cluster, authz.ClusterName) && !s.allowedTopic(r, authz.Create, *name) {
			if unmade == nil {
				unmade = map[string]bool{}
			}
			unmade[*name] = true
			continue
		}
		create = append(create, controller.CreateTopic{Name: *name, Partitions: s.o.AutoCreatePartitions, ReplicationFactor: s.o.AutoCreateReplicas})
	}
	if len(create) == 0 {
		return unmade
	}
	for i := range create {
		_ = s.mutate(r, s.partitionsOf(&create[i]), false) // only throttled: there is no error for it
	}
	for _, res := range s.o.Controller.CreateTopics(r.ctx, create, false) {
		if res.Err != nil {
			s.o.Logger.Warn("cannot create topic on first use", "topic", res.Name, "client", r.clientID(), "err", res.Err)
		}
	}
	s.settle(r.ctx)
	return unmade
}

func describeTopic(img *metadata.Image, t *metadata.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	name := t.Name
	out.Topic, out.TopicID, out.IsInternal = &name, t.ID, t.Internal
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, 0, len(t.Partitions))
	for _, p := range t.Partitions {
		mp := kmsg.NewMetadataResponseTopicPartition()
		mp.Partition, mp.Leader, mp.LeaderEpoch = p.Index, p.Leader, p.LeaderEpoch
		mp.Replicas, mp.ISR = p.Replicas, p.ISR
		for _, id := range p.Replicas {
			if b := img.Broker(id); b == nil || b.Fenced {
				mp.OfflineReplicas = append(mp.OfflineReplicas, id)
			}
		}
		if b := img.Broker(p.Leader); p.Leader < 0 || b == nil || b.Fenced {
			mp.Leader = -1
			mp.ErrorCode = kerr.LeaderNotAvailable.Code
		}
		out.Partitions = append(out.Partitions, mp)
	}
	return out
}

// nodes names brokers by their address for clients of c's listener: those of
// ids, or all that are not fenced when ids is nil. A broker that does not have
// the listener is left out: the client could not reach it.
func (s *Server) nodes(c *conn, ids []int32) []node {
	var out []node
	for _, b := range s.o.Controller.Image().Brokers() {
		if b.Fenced || ids != nil && !slices.Contains(ids, b.ID) {
			continue
		}
		e, ok := c.listener.endpointOf(b)
		if !ok {
			continue
		}
		n := node{id: b.ID, host: e.Host, port: e.Port}
		if b.Rack != "" {
			n.rack = &b.Rack
		}
		out = append(out, n)
	}
	return out
}

// controllerBroker is where clients are told to send requests for the controller:
// to the node that has the office, or to this one if that is no broker. Every broker
// passes them on.
func (s *Server) controllerBroker(img *metadata.Image) int32 {
	if id, _, ok := s.o.Controller.Active(); ok {
		if b := img.Broker(id); b != nil && !b.Fenced {
			return id
		}
	}
	return s.o.NodeID
}

// validTopicName is Kafka's rule: 1 to 249 of a small alphabet, and no names
// that a file system reads as its own.
func validTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > 249 {
		return false
	}
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}
