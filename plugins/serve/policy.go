package serve

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Actions and reasons are one higher in the messages, where 0 is "not set".

type truncationServer struct {
	proto.UnimplementedTruncationPolicyServer
	policy sdk.TruncationPolicy
}

func (s *truncationServer) Decide(ctx context.Context, m *proto.TruncationQuestion) (*proto.TruncationDecision, error) {
	if m.Reason == proto.TruncationReason_TRUNCATION_REASON_UNSPECIFIED {
		return nil, status.Error(codes.InvalidArgument, "the question has no reason")
	}
	q := &sdk.TruncationQuestion{
		Mirror:             m.Mirror,
		Key:                partitionKey(m.Key),
		Reason:             sdk.TruncationReason(m.Reason - 1),
		LogStart:           m.LogStart,
		HighWatermark:      m.HighWatermark,
		LogEnd:             m.LogEnd,
		LastMirroredEpoch:  m.LastMirroredEpoch,
		LastMirroredOffset: m.LastMirroredOffset,
		UncleanSupport:     m.UncleanSupport,
		Target:             m.Target,
	}
	if len(m.Epochs) > 0 {
		q.Epochs = make([]sdk.EpochStart, len(m.Epochs))
		for i, e := range m.Epochs {
			q.Epochs[i] = sdk.EpochStart{Epoch: e.GetEpoch(), Start: e.GetStart()}
		}
	}
	d, err := s.policy.DecideTruncation(ctx, q)
	if err != nil {
		return nil, err
	}
	return &proto.TruncationDecision{
		Action:    proto.TruncationAction(d.Action) + 1,
		Target:    d.Target,
		Retryable: d.Retryable,
		Text:      d.Text,
	}, nil
}

type uncleanServer struct {
	proto.UnimplementedUncleanElectionPolicyServer
	policy sdk.UncleanElectionPolicy
}

func (s *uncleanServer) Decide(ctx context.Context, m *proto.UncleanElectionQuestion) (*proto.UncleanElectionDecision, error) {
	if m.Kind == proto.UncleanKind_UNCLEAN_KIND_UNSPECIFIED {
		return nil, status.Error(codes.InvalidArgument, "the question has no kind")
	}
	q := &sdk.UncleanElectionQuestion{
		Kind:           sdk.UncleanKind(m.Kind - 1),
		Mirror:         m.Mirror,
		Key:            partitionKey(m.Key),
		UncleanSupport: m.UncleanSupport,
		UncleanAllowed: m.UncleanAllowed,
		LogEnd:         m.LogEnd,
		HighWatermark:  m.HighWatermark,
		Diverging:      sdk.Undefined,
		Live:           m.Live,
	}
	if m.Diverging != nil {
		q.Diverging = sdk.EpochEnd{Epoch: m.Diverging.Epoch, End: m.Diverging.End}
	}
	d, err := s.policy.DecideUncleanElection(ctx, q)
	if err != nil {
		return nil, err
	}
	return &proto.UncleanElectionDecision{
		Action:    proto.UncleanAction(d.Action) + 1,
		Leader:    d.Leader,
		Retryable: d.Retryable,
		Text:      d.Text,
	}, nil
}

func partitionKey(m *proto.PartitionKey) sdk.PartitionKey {
	k := sdk.PartitionKey{Topic: m.GetTopic(), Partition: m.GetPartition()}
	copy(k.TopicID[:], m.GetTopicId())
	return k
}
