package partition

import (
	"context"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Log is what the rules of a replica ask of its log. *segment.Log is one; the
// simulation has one in memory. What it promises is written there.
type Log interface {
	Append(batches []byte) (segment.Appended, error)
	AppendReserved(batches []byte) (segment.Appended, error)
	Flush(done func(error))
	Truncate(end int64) error
	TruncateFully(start int64) error
	Keep(offset int64) (segment.Kept, error)

	StartOffset() int64
	EndOffset() int64
	DurableEnd() int64
	HighWatermark() int64
	SetHighWatermark(hw int64)
	SetStartOffset(start int64) error
	SyncMarks() error
	Retain(now time.Time, highWatermark int64) (deleted int, err error)
	SetConfig(c segment.Config)

	Read(offset int64, maxBytes int, end int64, atLeastOne bool) (segment.View, error)
	ReadCommitted(offset int64, maxBytes int, end int64, atLeastOne bool) (segment.View, []producer.AbortedTxn, error)

	EpochEnd(e int32) (int32, int64)
	EpochAt(offset int64) (int32, bool)
	LatestEpoch() (int32, bool)
	Epochs() []epoch.Entry
	OffsetForTime(ts int64) (offset, timestamp int64, leaderEpoch int32, ok bool, err error)
	MaxTimestamp() (offset, ts int64, leaderEpoch int32, ok bool)

	CheckProducer(b record.Batch) (*producer.Dup, error)
	CheckProducerEpoch(id int64, epoch int16) error
	CheckMarker(id int64, epoch int16, coordinatorEpoch int32, version int) error
	InTransaction(id int64, epoch int16) (bool, error)
	LastStable(highWatermark int64) int64
	Producers() []producer.Producer
	OpenTxns() []producer.OpenTxn

	Ready() error
	Wait(ctx context.Context) error
	WhenReady(done func(error))
}

var _ Log = (*segment.Log)(nil)
