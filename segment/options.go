package segment

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// Options configure a Store, that is one log directory.
type Options struct {
	// Dir is the log directory; it is made if it is not there.
	Dir string

	// FS is the file system. nil is the real one, whose files can be sent to a
	// socket by the kernel; any other is read through ReadAt.
	FS vfs.FS

	Clock  clock.Clock  // nil: the machine's
	Logger *slog.Logger // nil: discard

	// FlushInterval is how long appended bytes may stay unsynced when nobody asks
	// for a flush. Less bounds what a power cut takes from a mirror (which fetches
	// it again); more gives larger writes. Default 1 s (mirror.flush.ms); negative: never.
	FlushInterval time.Duration

	// CheckpointInterval is how often high watermarks and durable ends are noted
	// in the watermarks file, hence how much a recovery has to scan. Default 5 s.
	CheckpointInterval time.Duration

	// MaxOpenFiles bounds the segment files held open. Files with unsynced bytes
	// and files that a View holds are not closed for it. Default 4096.
	MaxOpenFiles int

	// IndexInterval is the distance of index entries in bytes. Less makes lookups
	// shorter and the index larger: at 4 KiB Pebble costs as much as the whole
	// append path. Default 64 KiB.
	IndexInterval int64

	// IndexMemory is the memory of the index store in bytes: block cache and
	// memtables. Default 16 MiB.
	IndexMemory int64

	// ReserveBytes is how much of the disk records never take, so that metadata,
	// marks, the index and deletions have room when it is full (ErrFull). A quarter
	// of it, 24 to 64 MiB, is held by a ballast file besides. 0: a twentieth of the
	// disk, 512 MiB at most; negative: no reserve, appends stop when writing fails.
	ReserveBytes int64

	// StallTimeout is how long one write or fsync may take before the directory
	// counts as Slow (log.dir.stall.ms). Default 10 s; negative: never.
	StallTimeout time.Duration

	// OnHealth hears of every change of Health, on a goroutine of the store, one
	// change after the other; it should not block. States that lasted only while
	// it was busy are left out.
	OnHealth func(Health)

	// ScrubBytesPerSecond is how fast the scrubber reads every durable byte of the
	// open logs to check it: less spares the disk, more finds damage sooner. 0 is off.
	ScrubBytesPerSecond int64

	// ScrubInterval is the time from the beginning of one pass of the scrubber to
	// that of the next. Default a week.
	ScrubInterval time.Duration

	// OnDamage is told of damage that the scrubber found, or confirmed after a
	// reader met it, or that gathering a log's history in the background met: once
	// per log and repair. The log is out of use by then (see Repair). It runs on a
	// goroutine of the store and must not block. What is found while a log is
	// opened comes as OpenLog's error instead.
	OnDamage func(LogID, *DamageError)

	// QuarantineBytes and QuarantineAge bound what is kept of damaged files that
	// were replaced; the oldest go first, the newest one stays whatever its size.
	// Defaults 10 GiB and 7 days.
	QuarantineBytes int64
	QuarantineAge   time.Duration

	// KeepBytes and KeepAge bound what Keep copies before a cut, in the same way;
	// KeepBytes below zero switches it off. Defaults 1 GiB and 7 days.
	KeepBytes int64
	KeepAge   time.Duration
	// KeepRequired makes Keep fail, and with it the cut, when the copy cannot be
	// made. Without it the cut goes on and an event tells what was not kept.
	KeepRequired bool

	// HistoryReaders is how many logs at once gather in the background what the
	// index has lost. Default 4.
	HistoryReaders int

	wrap     func(dataFile) dataFile // tests make files fail
	together int                     // logs from which on one sync may do for all; default togetherFrom

	tail   int        // index entries of an active segment kept in memory; default tailMax
	inline int64      // bytes of history that are walked while everybody waits; default 1 MiB, negative: none
	gate   func(*Log) // tests: called before a history is gathered, and before each segment
}

// EnsureDefaults fills what is zero.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FlushInterval == 0 {
		o.FlushInterval = time.Second
	}
	if o.together == 0 {
		o.together = togetherFrom
	}
	if o.CheckpointInterval == 0 {
		o.CheckpointInterval = 5 * time.Second
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = 4096
	}
	if o.IndexInterval == 0 {
		o.IndexInterval = scanChunk
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = 10 * time.Second
	}
	if o.ScrubInterval == 0 {
		o.ScrubInterval = 7 * 24 * time.Hour
	}
	if o.QuarantineBytes == 0 {
		o.QuarantineBytes = 10 << 30
	}
	if o.QuarantineAge == 0 {
		o.QuarantineAge = 7 * 24 * time.Hour
	}
	if o.KeepBytes == 0 {
		o.KeepBytes = 1 << 30
	}
	if o.KeepAge == 0 {
		o.KeepAge = 7 * 24 * time.Hour
	}
	if o.HistoryReaders <= 0 {
		o.HistoryReaders = 4
	}
	if o.inline == 0 {
		o.inline = 1 << 20
	}
	if o.tail == 0 {
		o.tail = tailMax
	}
	if o.IndexMemory == 0 {
		o.IndexMemory = 16 << 20
	}
}

// Validate names every fault at once.
func (o *Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("Dir is empty"))
	}
	if o.CheckpointInterval < 0 {
		errs = append(errs, fmt.Errorf("CheckpointInterval is %s, must not be negative", o.CheckpointInterval))
	}
	if o.MaxOpenFiles < 8 {
		errs = append(errs, fmt.Errorf("MaxOpenFiles is %d, must be 8 or more", o.MaxOpenFiles))
	}
	if o.IndexInterval < 1 {
		errs = append(errs, fmt.Errorf("IndexInterval is %d, must be positive", o.IndexInterval))
	}
	if o.IndexMemory < 1<<20 {
		errs = append(errs, fmt.Errorf("IndexMemory is %d, must be 1 MiB or more", o.IndexMemory))
	}
	if o.ScrubBytesPerSecond < 0 {
		errs = append(errs, fmt.Errorf("ScrubBytesPerSecond is %d, must not be negative", o.ScrubBytesPerSecond))
	}
	if o.ScrubInterval < 0 || o.QuarantineBytes < 0 || o.QuarantineAge < 0 || o.KeepAge < 0 {
		errs = append(errs, fmt.Errorf("ScrubInterval %s, QuarantineBytes %d, QuarantineAge %s and KeepAge %s must not be negative",
			o.ScrubInterval, o.QuarantineBytes, o.QuarantineAge, o.KeepAge))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("segment options: %w", err)
	}
	return nil
}

// Config is what a topic says about one log. The zero Config is DefaultConfig;
// if any field is set, all are taken as they are.
type Config struct {
	// SegmentBytes closes a segment that has reached it (segment.bytes). An append
	// is never split, so a single one may make a larger segment. Default 1 GiB,
	// at most 2 GiB - 1; 0 or less means the default.
	SegmentBytes int64
	// SegmentMs closes a segment whose first and newest timestamp are that far
	// apart (segment.ms); 0 or less means never.
	SegmentMs int64
	// RetentionMs deletes closed segments whose newest timestamp is older
	// (retention.ms). Negative means never, 0 at once, as in Kafka.
	RetentionMs int64
	// RetentionBytes deletes the oldest closed segments while the log without them
	// has at least that size (retention.bytes). Negative means never.
	RetentionBytes int64
	// Compact keeps only the newest record of each key in closed segments
	// (cleanup.policy has "compact" in it). Deletion by time and size is on or
	// off by itself.
	Compact bool
	// MinCompactionLagMs keeps compaction away from records that are younger, or
	// from their segment on (min.compaction.lag.ms).
	MinCompactionLagMs int64
	// MaxCompactionLagMs makes a log due for compaction once a record has waited
	// that long (max.compaction.lag.ms); 0 or less means never.
	MaxCompactionLagMs int64
	// DeleteRetentionMs is how long tombstones and transaction markers stay after
	// the first compaction that saw them (delete.retention.ms).
	DeleteRetentionMs int64
	// MinCleanableRatio is the part of the log's bytes that was never compacted
	// from which on a compaction is due (min.cleanable.dirty.ratio), 0 to 1.
	MinCleanableRatio float64
	// ProducerExpirationMs forgets idle producers (producer.id.expiration.ms).
	// 0 means a day; negative never. One with an open transaction never goes (L10).
	ProducerExpirationMs int64
}

// DefaultConfig keeps everything in segments of 1 GiB.
func DefaultConfig() Config {
	return Config{SegmentBytes: 1 << 30, RetentionMs: -1, RetentionBytes: -1}
}

func (c Config) withDefaults() Config {
	if c == (Config{}) {
		c = DefaultConfig()
	}
	if c.SegmentBytes <= 0 {
		c.SegmentBytes = 1 << 30
	}
	c.SegmentBytes = min(c.SegmentBytes, math.MaxInt32)
	if c.ProducerExpirationMs == 0 {
		c.ProducerExpirationMs = 24 * 60 * 60 * 1000
	}
	return c
}
