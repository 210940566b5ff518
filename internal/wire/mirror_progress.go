package wire

// MirrorProgress is what the leader of a mirror partition knows of its source, also
// while nothing is fetched. It travels in tagged fields of ours, in keys 99 and 107,
// because KIP-1279 has offsets only, and those only while a partition is MIRRORING.
type MirrorProgress struct {
	// Contact is unknown, stale, behind, current or idle; see mirror.Contact.
	Contact    string
	SourceSeen int64 // high watermark of the source when it last answered, -1 never
	LogEnd     int64 // our log end: a failover keeps all below it
	// HeardMillis is how long ago the source last answered, -1 never.
	HeardMillis int64
	// LagMillis bounds the age of the oldest record that is not here, 0 for none, -1
	// unknown.
	LagMillis        int64
	OpenTransactions int32 // of the source, which a failover would abort
	// MilliRate is how many records the source took in a thousand seconds before it last
	// answered; 0 is none, and -1 not known.
	MilliRate int64 // tag 0, without -1
}

func (p *MirrorProgress) code(c *mirrorCodec) {
	c.string(&p.Contact)
	c.int64(&p.SourceSeen)
	c.int64(&p.LogEnd)
	c.int64(&p.HeardMillis)
	c.int64(&p.LagMillis)
	c.int32(&p.OpenTransactions)
	if c.r != nil {
		p.MilliRate = -1
	}
	c.tags(mirrorTag{0, p.MilliRate != -1, func(c *mirrorCodec) { c.int64(&p.MilliRate) }})
}

func progressTag(tag uint32, p **MirrorProgress) mirrorTag {
	return mirrorTag{tag, *p != nil, func(c *mirrorCodec) {
		if c.r != nil {
			*p = new(MirrorProgress)
		}
		(*p).code(c)
	}}
}

// MirrorSync is how one of a mirror's recurring tasks does: source, topics, configs,
// groups, acls or discovery.
type MirrorSync struct {
	Task      string
	AgeMillis int64   // since it last succeeded, -1 never
	Error     *string // of the last round, nil if it succeeded
}

func syncsTag(tag uint32, syncs *[]MirrorSync) mirrorTag {
	return mirrorTag{tag, len(*syncs) > 0, func(c *mirrorCodec) {
		mirrorArray(c, syncs, func(c *mirrorCodec, s *MirrorSync) {
			c.string(&s.Task)
			c.int64(&s.AgeMillis)
			c.nullableString(&s.Error)
			c.tags()
		})
	}}
}
