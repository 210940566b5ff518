package pipeline

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Reason is why a worker gave a partition up.
type Reason int8

const (
	EpochAhead       Reason = iota // a batch's epoch is above DLE; its piece was not appended
	SourceEpochStale               // a batch's epoch is above SLE: refresh the source's metadata
	Diverged                       // the source's history and ours part: End.Diverging
	OutOfRange                     // the source does not have our log end
	NotLeader                      // another broker leads: End.NewLeader, End.NewLeaderEpoch if known
	UnknownTopicID                 // the topic may have been created anew
	Unreachable                    // no session, or it broke
	Corrupt                        // a batch was damaged twice in a row
	Format                         // a batch is of a format before v2
	Fatal                          // the source answered with End.Code
	Local                          // our own log refused: End.Err
)

var reasonNames = [...]string{
	EpochAhead: "epoch-ahead", SourceEpochStale: "source-epoch-stale", Diverged: "diverged",
	OutOfRange: "out-of-range", NotLeader: "not-leader", UnknownTopicID: "unknown-topic-id",
	Unreachable: "unreachable", Corrupt: "corrupt", Format: "format", Fatal: "fatal", Local: "local",
}

// String is the reason as the metrics label it.
func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasonNames) {
		return fmt.Sprintf("reason-%d", int8(r))
	}
	return reasonNames[r]
}

// End is a pipeline's last word. Fields that the reason does not name are -1
// or undefined.
type End struct {
	Reason         Reason
	Epoch          int32 // of the offending batch, with EpochAhead and SourceEpochStale
	Diverging      sdk.EpochEnd
	NewLeader      int32
	NewLeaderEpoch int32
	LogStart       int64 // of the source, with OutOfRange and if it says so
	Code           int16 // Kafka error code, 0 unless the source gave one
	Err            error // one line for the operator; never nil
}

func newEnd(r Reason, err error) End {
	return End{Reason: r, Epoch: -1, Diverging: sdk.Undefined, NewLeader: -1, NewLeaderEpoch: -1, LogStart: -1, Err: err}
}
