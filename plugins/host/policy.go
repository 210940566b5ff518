package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// truncation is a plugin's truncation policy.
type truncation struct {
	s        *supervisor
	fallback sdk.TruncationPolicy
}

func (p *truncation) Name() string { return p.s.spec.Name }

// DecideTruncation asks the plugin once. Its error is the fallback's, or that
// ctx has ended.
func (p *truncation) DecideTruncation(ctx context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	var d sdk.TruncationDecision
	began := p.s.o.Clock.Now()
	err := p.s.ask(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		m, err := proto.NewTruncationPolicyClient(conn).Decide(ctx, truncationQuestion(q))
		if err == nil {
			d, err = truncationDecision(m, q)
		}
		return err
	})
	log := p.s.logger.With("question", "truncation", "mirror", q.Mirror, "partition", q.Key.String(),
		"reason", q.Reason.String(), "log_end", q.LogEnd, "target", q.Target)
	if err == nil {
		p.s.decided.Inc()
		log.Info("plugin decided", "action", truncationActions[d.Action], "cut_to", d.Target, "text", d.Text, "took", since(p.s, began))
		return d, nil
	}
	if ctx.Err() != nil {
		return sdk.TruncationDecision{}, ctx.Err()
	}
	p.s.byDefault(log, p.fallback.Name(), err)
	return p.fallback.DecideTruncation(ctx, q)
}

// unclean is a plugin's unclean election policy.
type unclean struct {
	s        *supervisor
	fallback sdk.UncleanElectionPolicy
}

func (p *unclean) Name() string { return p.s.spec.Name }

// DecideUncleanElection asks the plugin once. Its error is the fallback's, or
// that ctx has ended.
func (p *unclean) DecideUncleanElection(ctx context.Context, q *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	var d sdk.UncleanElectionDecision
	began := p.s.o.Clock.Now()
	err := p.s.ask(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		m, err := proto.NewUncleanElectionPolicyClient(conn).Decide(ctx, uncleanQuestion(q))
		if err == nil {
			d, err = uncleanDecision(m, q)
		}
		return err
	})
	log := p.s.logger.With("question", "unclean election", "mirror", q.Mirror, "partition", q.Key.String(),
		"log_end", q.LogEnd, "diverging_end", q.Diverging.End, "live", q.Live)
	if err == nil {
		p.s.decided.Inc()
		log.Info("plugin decided", "action", uncleanActions[d.Action], "leader", d.Leader, "text", d.Text, "took", since(p.s, began))
		return d, nil
	}
	if ctx.Err() != nil {
		return sdk.UncleanElectionDecision{}, ctx.Err()
	}
	p.s.byDefault(log, p.fallback.Name(), err)
	return p.fallback.DecideUncleanElection(ctx, q)
}

func (s *supervisor) byDefault(log *slog.Logger, fallback string, err error) {
	s.defaulted.Inc()
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	log.Warn("plugin did not decide, the default does", "default", fallback, "error", oneLine(text))
}

func since(s *supervisor, began time.Time) time.Duration { return s.o.Clock.Now().Sub(began) }

// In the messages 0 is "not set", so that an empty answer is no decision.

var truncationActions = map[sdk.TruncationAction]string{sdk.TruncateCut: "cut", sdk.TruncateHold: "hold", sdk.TruncateFail: "fail"}

var uncleanActions = map[sdk.UncleanElectionAction]string{sdk.UncleanFail: "fail", sdk.UncleanRecover: "recover", sdk.UncleanElect: "elect"}

func truncationQuestion(q *sdk.TruncationQuestion) *proto.TruncationQuestion {
	m := &proto.TruncationQuestion{
		Mirror:             q.Mirror,
		Key:                partitionKey(q.Key),
		Reason:             proto.TruncationReason(q.Reason) + 1,
		LogStart:           q.LogStart,
		HighWatermark:      q.HighWatermark,
		LogEnd:             q.LogEnd,
		LastMirroredEpoch:  q.LastMirroredEpoch,
		LastMirroredOffset: q.LastMirroredOffset,
		UncleanSupport:     q.UncleanSupport,
		Target:             q.Target,
	}
	for _, e := range q.Epochs {
		m.Epochs = append(m.Epochs, &proto.EpochStart{Epoch: e.Epoch, Start: e.Start})
	}
	return m
}

// truncationDecision refuses what the question does not allow.
func truncationDecision(m *proto.TruncationDecision, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	d := sdk.TruncationDecision{Target: m.Target, Retryable: m.Retryable, Text: oneLine(m.Text)}
	switch m.Action {
	case proto.TruncationAction_TRUNCATION_ACTION_CUT:
		d.Action = sdk.TruncateCut
		if m.Target < 0 || m.Target > q.Target {
			return d, fmt.Errorf("answer was refused: cut to %d is not between 0 and the question's target %d", m.Target, q.Target)
		}
	case proto.TruncationAction_TRUNCATION_ACTION_HOLD:
		d.Action = sdk.TruncateHold
	case proto.TruncationAction_TRUNCATION_ACTION_FAIL:
		d.Action = sdk.TruncateFail
	default:
		return d, fmt.Errorf("answer was refused: no such action: %v", m.Action)
	}
	return d, nil
}

func uncleanQuestion(q *sdk.UncleanElectionQuestion) *proto.UncleanElectionQuestion {
	return &proto.UncleanElectionQuestion{
		Kind:           proto.UncleanKind(q.Kind) + 1,
		Mirror:         q.Mirror,
		Key:            partitionKey(q.Key),
		UncleanSupport: q.UncleanSupport,
		UncleanAllowed: q.UncleanAllowed,
		LogEnd:         q.LogEnd,
		HighWatermark:  q.HighWatermark,
		Diverging:      &proto.EpochEnd{Epoch: q.Diverging.Epoch, End: q.Diverging.End},
		Live:           q.Live,
	}
}

// uncleanDecision refuses what the question does not allow.
func uncleanDecision(m *proto.UncleanElectionDecision, q *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	d := sdk.UncleanElectionDecision{Leader: m.Leader, Retryable: m.Retryable, Text: oneLine(m.Text)}
	switch m.Action {
	case proto.UncleanAction_UNCLEAN_ACTION_FAIL:
		d.Action = sdk.UncleanFail
	case proto.UncleanAction_UNCLEAN_ACTION_RECOVER:
		d.Action = sdk.UncleanRecover
		if q.Kind != sdk.UncleanSource {
			return d, errors.New("answer was refused: only a source's loss can be recovered from")
		}
	case proto.UncleanAction_UNCLEAN_ACTION_ELECT:
		d.Action = sdk.UncleanElect
		if q.Kind != sdk.UncleanDestination || !slices.Contains(q.Live, m.Leader) {
			return d, fmt.Errorf("answer was refused: %d is none of the replicas %v that could lead", m.Leader, q.Live)
		}
	default:
		return d, fmt.Errorf("answer was refused: no such action: %v", m.Action)
	}
	return d, nil
}

func partitionKey(k sdk.PartitionKey) *proto.PartitionKey {
	return &proto.PartitionKey{Topic: k.Topic, TopicId: k.TopicID[:], Partition: k.Partition}
}
