package mirror

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// The built-in policies do what the specification says (D19). Others come from
// plugins and are asked the same questions.

type builtinTruncation struct{}

func (builtinTruncation) Name() string { return "builtin" }

func (builtinTruncation) DecideTruncation(_ context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	return sdk.TruncationDecision{Action: sdk.TruncateCut, Target: q.Target}, nil
}

type builtinUnclean struct{}

func (builtinUnclean) Name() string { return "builtin" }

// DecideUncleanElection follows a source's loss only where the topic allows it
// (9.9). Otherwise records that were already read here would vanish; the
// operator decides. A destination partition elects outside the ISR only where
// the topic's own unclean.leader.election.enable says so.
func (builtinUnclean) DecideUncleanElection(_ context.Context, q *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	if q.Kind == sdk.UncleanDestination {
		if q.UncleanAllowed && len(q.Live) > 0 {
			return sdk.UncleanElectionDecision{Action: sdk.UncleanElect, Leader: q.Live[0]}, nil
		}
		return sdk.UncleanElectionDecision{Action: sdk.UncleanFail, Text: "no replica in sync is alive"}, nil
	}
	if q.UncleanSupport {
		return sdk.UncleanElectionDecision{Action: sdk.UncleanRecover}, nil
	}
	return sdk.UncleanElectionDecision{
		Action: sdk.UncleanFail,
		Text: fmt.Sprintf("%s is mirrored up to %d, but the source's history leaves ours at %d (an unclean leader election there); "+
			"nothing was cut, because %s is false; recover or start the topic to go on without them: %d records are cut, or all where the source tells no last mirrored epoch",
			q.Key, q.LogEnd, q.Diverging.End, metadata.MirrorULEConfig, q.LogEnd-q.Diverging.End),
	}, nil
}
