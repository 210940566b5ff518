package pipeline

import (
	"time"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Target is the log that a pipeline appends to: *partition.Partition, or a
// plain log in tests. Methods may be called from the worker's goroutine only
// while the pipeline is attached.
type Target interface {
	// LogEnd is the next offset and the leader epoch of the last batch, -1 for
	// an empty log.
	LogEnd() (end int64, lastEpoch int32)
	// MirrorAppend writes whole batches that this package has verified. It
	// refuses when leaderEpoch is not the target's current one (S12).
	MirrorAppend(leaderEpoch int32, batches []byte) (end int64, err error)
	AdvanceLogStart(leaderEpoch int32, start int64) error
	HighWatermark() int64
}

// Options make a Pipeline.
type Options struct {
	Key    sdk.PartitionKey
	Mirror string // label of the metrics; empty is fine
	Target Target

	LeaderEpoch int32 // DLE: leader epoch of the destination partition
	SourceEpoch int32 // SLE: leader epoch of the source partition, -1 unknown

	Observer Observer
}

// Position is how far one mirrored partition has come.
type Position struct {
	SourceHighWatermark int64     // -1 until the first response
	SourceLogStart      int64     // -1 until the first response
	End                 int64     // our log end
	FetchedAt           time.Time // of the last response without an error
}

// Observer hears what happens to a pipeline. Its methods run on the worker's
// goroutine and must not block; they may call Worker.Add, Remove and SetEpochs.
type Observer interface {
	// Progress follows each response without an error.
	Progress(p *Pipeline, pos Position)
	// NearEpoch says that batches of an epoch above DLE-3 were appended.
	NearEpoch(p *Pipeline, epoch int32)
	// Ended is the last call: the worker has dropped p.
	Ended(p *Pipeline, e End)
}

// Reason is why a worker gave a partition up.
type Reason int8

const (
	EpochAhead       Reason = iota // a batch's epoch is above DLE; the piece was not appended
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

// End is a pipeline's last word.
type End struct {
	Reason         Reason
	Epoch          int32 // of the offending batch, with EpochAhead and SourceEpochStale
	Diverging      sdk.EpochEnd
	NewLeader      int32 // -1 unknown
	NewLeaderEpoch int32
	Code           int16 // Kafka error code, when the source gave one
	Err            error // one line for the operator; never nil
}

// Pipeline is one partition being mirrored in one leader epoch.
type Pipeline struct {
	o Options
}

// New makes a Pipeline; it does nothing until it is added to a Worker.
func New(o Options) *Pipeline { return &Pipeline{o: o} }

// Key is the partition.
func (p *Pipeline) Key() sdk.PartitionKey { return p.o.Key }

// Position is a copy of how far the pipeline has come.
func (p *Pipeline) Position() Position { return Position{} }
