package segment

import (
	"errors"
	"os"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

var errSkeleton = errors.New("segment: not built yet")

// LogID names one log of a store.
type LogID struct {
	Topic     [16]byte
	Partition int32
}

type Store struct{}

func Open(o Options) (*Store, error) { return nil, errSkeleton }

func (s *Store) OpenLog(id [16]byte, partition int32, c Config) (*Log, error) {
	return nil, errSkeleton
}
func (s *Store) Logs() []LogID                             { return nil }
func (s *Store) Delete(id [16]byte, partition int32) error { return errSkeleton }
func (s *Store) Close() error                              { return errSkeleton }

type Log struct{}

// Appended is what one Append did.
type Appended struct {
	First, End           int64
	MaxTimestamp         int64
	OffsetOfMaxTimestamp int64
}

func (l *Log) SetConfig(c Config)                                     {}
func (l *Log) Append(batches []byte) (Appended, error)                { return Appended{}, errSkeleton }
func (l *Log) CheckProducer(b record.Batch) (*producer.Dup, error)    { return nil, errSkeleton }
func (l *Log) StartOffset() int64                                     { return 0 }
func (l *Log) EndOffset() int64                                       { return 0 }
func (l *Log) DurableEnd() int64                                      { return 0 }
func (l *Log) Size() int64                                            { return 0 }
func (l *Log) HighWatermark() int64                                   { return 0 }
func (l *Log) SetHighWatermark(hw int64)                              {}
func (l *Log) Flush(done func(error))                                 { done(errSkeleton) }
func (l *Log) EpochEnd(e int32) (int32, int64)                        { return -1, -1 }
func (l *Log) LatestEpoch() (int32, bool)                             { return -1, false }
func (l *Log) EpochAt(offset int64) (int32, bool)                     { return -1, false }
func (l *Log) Epochs() []epoch.Entry                                  { return nil }
func (l *Log) LastStable(highWatermark int64) int64                   { return 0 }
func (l *Log) Aborted(from, to int64) []producer.AbortedTxn           { return nil }
func (l *Log) OpenTxns() []producer.OpenTxn                           { return nil }
func (l *Log) Truncate(end int64) error                               { return errSkeleton }
func (l *Log) TruncateFully(start int64) error                        { return errSkeleton }
func (l *Log) SetStartOffset(start int64) error                       { return errSkeleton }
func (l *Log) Retain(now time.Time, highWatermark int64) (int, error) { return 0, errSkeleton }
func (l *Log) Read(offset int64, maxBytes int, end int64, atLeastOne bool) (View, error) {
	return View{}, errSkeleton
}
func (l *Log) OffsetForTime(ts int64) (offset, timestamp int64, epoch int32, ok bool, err error) {
	return -1, -1, -1, false, errSkeleton
}
func (l *Log) MaxTimestamp() (offset, ts int64, epoch int32, ok bool) { return -1, -1, -1, false }

// View is a range of whole batches in one segment file.
type View struct {
	Base int64 // offset of the first batch
	End  int64 // end of the last batch
	N    int   // bytes
}

func (v *View) File() (*os.File, bool)                  { return nil, false }
func (v *View) Offset() int64                           { return 0 }
func (v *View) Len() int                                { return v.N }
func (v *View) ReadAt(p []byte, off int64) (int, error) { return 0, errSkeleton }
func (v *View) Release()                                {}
