package sdk

import "context"

// TruncationReason says why a mirror is about to remove records.
type TruncationReason int8

const (
	// TruncateLastMirrored: mirroring starts; the log is cut to the end of the
	// last epoch that the other side had mirrored from us.
	TruncateLastMirrored TruncationReason = iota
	// TruncateAlign: mirroring starts; the log holds records that the source's
	// leader does not have.
	TruncateAlign
	// TruncateSourceLoss: mirroring runs, and the source lost records that
	// were already mirrored (an unclean election there).
	TruncateSourceLoss
	// TruncateRetention: the source's first offset has passed our log end; the
	// log is emptied and begins again at the source's log start.
	TruncateRetention
)

func (r TruncationReason) String() string {
	switch r {
	case TruncateLastMirrored:
		return "last-mirrored"
	case TruncateAlign:
		return "align"
	case TruncateSourceLoss:
		return "source-loss"
	case TruncateRetention:
		return "retention"
	}
	return "unknown"
}

// TruncationQuestion is everything known when a log may have to be cut. It is
// asked once per decision, never per batch. The slices belong to the asker and
// are valid during the call.
type TruncationQuestion struct {
	Mirror string
	Key    PartitionKey
	Reason TruncationReason

	LogStart      int64 // of our log
	HighWatermark int64
	LogEnd        int64
	Epochs        []EpochStart // our log's leader epochs, ascending

	// LastMirroredEpoch and LastMirroredOffset are the other side's answer, -1
	// when it has none or cannot answer.
	LastMirroredEpoch  int32
	LastMirroredOffset int64

	// UncleanSupport is the topic's mirror.support.unclean.leader.election.
	UncleanSupport bool

	// Target is the log end that the built-in rule computes; it never exceeds
	// LogEnd. A policy that has no opinion returns it with [TruncateCut].
	Target int64
}

// EpochStart is one entry of a log's leader epoch history.
type EpochStart struct {
	Epoch int32
	Start int64 // first offset written in the epoch
}

// TruncationAction is what a policy may want.
type TruncationAction int8

const (
	TruncateCut  TruncationAction = iota // cut the log to Target
	TruncateHold                         // cut nothing and ask again later; the partition stays as it is
	TruncateFail                         // cut nothing; the partition fails with Text
)

// TruncationDecision answers a TruncationQuestion.
type TruncationDecision struct {
	Action TruncationAction
	// Target is the new log end with TruncateCut. A target above the
	// question's is refused: it would keep records the source does not have.
	Target int64
	// Retryable says, with TruncateFail, whether the mirror tries again by
	// itself.
	Retryable bool
	Text      string // one line for the operator
}

// TruncationPolicy decides what happens to records that the source lacks.
type TruncationPolicy interface {
	Name() string
	DecideTruncation(ctx context.Context, q *TruncationQuestion) (TruncationDecision, error)
}

// UncleanKind says which side lost the leader that knew everything.
type UncleanKind int8

const (
	// UncleanSource: the source elected a leader that lacks records we have.
	UncleanSource UncleanKind = iota
	// UncleanDestination: a partition of ours has no in-sync replica left that
	// could lead.
	UncleanDestination
)

// UncleanElectionQuestion is everything known about such an election.
type UncleanElectionQuestion struct {
	Kind   UncleanKind
	Mirror string // empty for a partition that is not mirrored
	Key    PartitionKey

	// UncleanSupport is the topic's mirror.support.unclean.leader.election,
	// UncleanAllowed its unclean.leader.election.enable.
	UncleanSupport bool
	UncleanAllowed bool

	// Of the partition's leader here, with UncleanSource: how far our log
	// reaches and where the histories part.
	LogEnd        int64
	HighWatermark int64
	Diverging     EpochEnd

	// Live are the replicas that could be elected, with UncleanDestination.
	Live []int32
}

// UncleanElectionAction is what a policy may want.
type UncleanElectionAction int8

const (
	// UncleanFail: change nothing. A mirrored partition fails and waits for the
	// operator; a partition without leader stays without.
	UncleanFail UncleanElectionAction = iota
	// UncleanRecover, with UncleanSource: cut to the source's history, behind
	// the gate that waits for all replicas.
	UncleanRecover
	// UncleanElect, with UncleanDestination: make Leader the leader.
	UncleanElect
)

// UncleanElectionDecision answers an UncleanElectionQuestion.
type UncleanElectionDecision struct {
	Action    UncleanElectionAction
	Leader    int32  // with UncleanElect, one of the question's Live
	Retryable bool   // with UncleanFail
	Text      string // one line for the operator
}

// UncleanElectionPolicy decides what an unclean election may cost.
type UncleanElectionPolicy interface {
	Name() string
	DecideUncleanElection(ctx context.Context, q *UncleanElectionQuestion) (UncleanElectionDecision, error)
}
