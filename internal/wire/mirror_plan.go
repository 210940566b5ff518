package wire

// A plan of a start asks what the start would do and changes nothing. It travels in
// tagged fields of ours of key 99, which describes: who does not know the field does
// nothing, where key 95 would start.

// StartPlanRequest is the start that is planned, of the one mirror that the request names.
type StartPlanRequest struct {
	IncludePatterns, ExcludePatterns []string
}

func startPlanRequestTag(tag uint32, r **StartPlanRequest) mirrorTag {
	return mirrorTag{tag, *r != nil, func(c *mirrorCodec) {
		if c.r != nil {
			*r = new(StartPlanRequest)
		}
		c.strings(&(*r).IncludePatterns)
		c.strings(&(*r).ExcludePatterns)
		c.tags()
	}}
}

// StartPlan is what the start would do.
type StartPlan struct{ Topics []PlannedTopic }

// PlannedTopic is a topic of the source that the start finds. One that would be made anew
// has no partitions, and neither has one with an error, which would not be started.
type PlannedTopic struct {
	Name         string
	ErrorCode    int16
	ErrorMessage *string
	Partitions   []PlannedPartition
}

// PlannedPartition is what the start would do to one partition that exists here.
type PlannedPartition struct {
	Partition         int32
	State             string
	Basis             string
	LastMirroredEpoch int32 // as the source tells it, -1 none
	LogStart, LogEnd  int64 // -1: its leader does not answer
	CutTo             int64 // the log would end here; -1 unknown
	// Shared is up to where the source has the same records, as far as leader epochs
	// tell; -1 unknown.
	Shared       int64
	ErrorMessage *string // why it would be FAILED, or is not known
}

func startPlanTag(tag uint32, p **StartPlan) mirrorTag {
	return mirrorTag{tag, *p != nil, func(c *mirrorCodec) {
		if c.r != nil {
			*p = new(StartPlan)
		}
		mirrorArray(c, &(*p).Topics, func(c *mirrorCodec, t *PlannedTopic) {
			c.string(&t.Name)
			c.int16(&t.ErrorCode)
			c.nullableString(&t.ErrorMessage)
			mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *PlannedPartition) {
				c.int32(&p.Partition)
				c.string(&p.State)
				c.string(&p.Basis)
				c.int32(&p.LastMirroredEpoch)
				c.int64(&p.LogStart)
				c.int64(&p.LogEnd)
				c.int64(&p.CutTo)
				c.int64(&p.Shared)
				c.nullableString(&p.ErrorMessage)
				c.tags()
			})
			c.tags()
		})
		c.tags()
	}}
}

// Basis is what decides where a start would cut a log.
const (
	BasisRunning      = "running"       // it is mirrored already, and left alone
	BasisEmpty        = "empty"         // there is nothing to cut
	BasisLastMirrored = "last-mirrored" // what the source, once a mirror of this cluster, had last
	BasisNeverThere   = "no-record"     // the source knows no last mirrored epoch: from scratch (W64)
	BasisUnsupported  = "not-told"      // the source does not know the question: from scratch (W63)
	BasisUnknown      = "unknown"       // somebody does not answer
)

// EpochStart is where a leader epoch begins in a log.
type EpochStart struct {
	Epoch int32
	Start int64
}

func epochsTag(tag uint32, epochs *[]EpochStart) mirrorTag {
	return mirrorTag{tag, len(*epochs) > 0, func(c *mirrorCodec) {
		mirrorArray(c, epochs, func(c *mirrorCodec, e *EpochStart) {
			c.int32(&e.Epoch)
			c.int64(&e.Start)
			c.tags()
		})
	}}
}
