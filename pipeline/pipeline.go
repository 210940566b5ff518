package pipeline

import (
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Target is the log that a pipeline appends to: *partition.Partition, or a
// plain log in tests. The worker calls it from its own goroutine only.
type Target interface {
	// LogEnd is the next offset and the leader epoch of the last batch, -1 for
	// an empty log.
	LogEnd() (end int64, lastEpoch int32)
	// MirrorAppend writes whole batches that this package has verified, in one
	// write, and keeps no reference to them. It refuses when leaderEpoch is
	// not the target's current one (S12).
	MirrorAppend(leaderEpoch int32, batches []byte) (end int64, err error)
	AdvanceLogStart(leaderEpoch int32, start int64) error
	HighWatermark() int64
}

// Restarter is a Target whose empty log can be given another first offset. It
// is needed when the source's log start lies inside a batch (DeleteRecords):
// the batch is copied whole, and the log start then moves into it again.
type Restarter interface {
	RestartEmpty(leaderEpoch int32, start int64) error
}

// Follower is a Target that is a replica of what it fetches: its source is the
// leader of its own cluster, which waits for it.
type Follower interface {
	// Ends are the log start and the end of what is on disk; the leader is told.
	Ends() (start, durable int64)
	// FollowHighWatermark takes over the leader's high watermark, as far as the log
	// goes, if leaderEpoch is the target's.
	FollowHighWatermark(leaderEpoch int32, highWatermark int64)
}

// Options make a Pipeline.
type Options struct {
	Key    sdk.PartitionKey
	Mirror string // label of the metrics; a Follower has none
	Target Target

	LeaderEpoch int32 // DLE: leader epoch of the destination partition
	SourceEpoch int32 // SLE: leader epoch of the source partition, -1 unknown

	Observer Observer
}

// Position is how far one mirrored partition has come. Every offset is the
// source's and ours at once: mirroring never renumbers.
type Position struct {
	SourceHighWatermark int64     // -1 until the first response
	SourceLogStart      int64     // -1 until the first response
	End                 int64     // our log end
	FetchedAt           time.Time // of the last response that confirmed the rest
}

// Observer hears what happens to a pipeline. Its methods run on the worker's
// goroutine and must not block. They may call Worker.Add, Remove and SetEpochs,
// but not Close, which waits for them.
type Observer interface {
	// Progress follows each response that mentions the partition without an
	// error, and at least once a second those that leave it out because nothing
	// is new.
	Progress(p *Pipeline, pos Position)
	// NearEpoch says, once per epoch, that batches of an epoch above DLE-3
	// were appended: the leader epoch should be raised soon (W31).
	NearEpoch(p *Pipeline, epoch int32)
	// Ended is the last call: the worker has dropped p.
	Ended(p *Pipeline, e End)
}

// Pipeline is one partition being mirrored in one leader epoch. It is given to
// one worker once; whoever wants to go on after its end makes a new one.
type Pipeline struct {
	o Options

	// gate is held by the worker during each append and by whoever detaches
	// the pipeline or changes its epochs: that is all the exclusion S12 needs
	// on this side. Nothing but the append itself is done under it.
	gate struct {
		sync.Mutex
		used        bool // given to a worker before
		attached    bool
		leaderEpoch int32
		sourceEpoch int32
	}

	pos struct {
		sync.Mutex
		Position
	}

	follower Follower // the target, if it is one

	// The rest belongs to the worker's goroutine.
	mentioned   bool  // by the response under way
	fetchOffset int64 // of the request under way
	lastEpoch   int32
	retryAt     time.Time // zero: no backoff
	maxBytes    int32     // raised when a batch came cut short
	damaged     bool      // the last response had a bad batch: one refetch (9.7)
	refused     bool      // the last append was refused: one more try
	fullUntil   time.Time // the log has no room: not asked for before, but zero
	stalls      int       // responses in a row whose bytes led nowhere
	nearEpoch   int32     // last epoch reported by NearEpoch
	followed    int64     // log start that our log was moved to already

	fetchedBytes, appendedBytes, appendedRecords *metrics.Counter
}

// New makes a Pipeline; it does nothing until it is added to a Worker.
func New(o Options) *Pipeline {
	p := &Pipeline{o: o, nearEpoch: -1}
	p.follower, _ = o.Target.(Follower)
	p.fetchedBytes = p.counter("fetched_bytes_total")
	p.appendedBytes = p.counter("appended_bytes_total")
	p.appendedRecords = p.counter("appended_records_total")
	p.gate.leaderEpoch, p.gate.sourceEpoch = o.LeaderEpoch, o.SourceEpoch
	p.pos.Position = Position{SourceHighWatermark: -1, SourceLogStart: -1}
	return p
}

// counter is one of the metrics of mirrors, or of replicas.
func (p *Pipeline) counter(name string, labels ...string) *metrics.Counter {
	if p.follower != nil {
		return obs.Counter("lockstep_replica_"+name, labels...)
	}
	return obs.Counter("lockstep_mirror_"+name, append([]string{"mirror", p.o.Mirror}, labels...)...)
}

func (p *Pipeline) countError(reason string) { p.counter("fetch_errors_total", "reason", reason).Inc() }

// Key is the partition.
func (p *Pipeline) Key() sdk.PartitionKey { return p.o.Key }

// Position is a copy of how far the pipeline has come.
func (p *Pipeline) Position() Position {
	p.pos.Lock()
	defer p.pos.Unlock()
	return p.pos.Position
}

// epochs are DLE and SLE as last set.
func (p *Pipeline) epochs() (leader, source int32) {
	p.gate.Lock()
	defer p.gate.Unlock()
	return p.gate.leaderEpoch, p.gate.sourceEpoch
}

// attach marks the pipeline as given to a worker; false if it was before.
func (p *Pipeline) attach() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	if p.gate.used {
		return false
	}
	p.gate.used, p.gate.attached = true, true
	return true
}

// detach waits for an append under way and lets none begin after it. It tells
// whether this call was the one that detached.
func (p *Pipeline) detach() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	was := p.gate.attached
	p.gate.attached = false
	return was
}

func (p *Pipeline) isAttached() bool {
	p.gate.Lock()
	defer p.gate.Unlock()
	return p.gate.attached
}
