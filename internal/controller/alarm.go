package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// etcd writes nothing more, on any member, from the moment in which one member's file
// reaches its quota: that one raises the alarm NOSPACE, and others whose files are as
// large raise none beside it. Deletions are refused as well, because every transaction of
// ours puts the chain key, and so are leases: when the active controller dies nobody is
// elected. Each member makes room in its own file, before its quota if it can, and takes
// its own alarm back. Others take it back for one that cannot: it raises the alarm again
// by itself if its file is full still.

// absentLimit is how long an alarm of another member stands before it is taken back for
// it: longer than making room takes, even for some gigabytes.
const absentLimit = time.Minute

// alarmPlan is what a member does about the alarms NOSPACE.
type alarmPlan struct {
	own    bool     // take our alarm back if our file has room
	others []uint64 // members whose alarms are taken back for them
}

// planAlarms decides by who raised an alarm, and since when each was seen here.
func planAlarms(self uint64, members []memberInfo, raised map[uint64]time.Time, now time.Time) (p alarmPlan) {
	for id, since := range raised {
		gone := !slices.ContainsFunc(members, func(m memberInfo) bool { return m.ID == id })
		switch {
		case id == self:
			p.own = true
		case gone || now.Sub(since) >= absentLimit:
			p.others = append(p.others, id)
		}
	}
	slices.Sort(p.others)
	return p
}

// raised are the members that have raised the alarm, as this member has heard.
func (e *store) raised(kind pb.AlarmType) []uint64 {
	var ids []uint64
	for _, a := range e.member.Server.Alarms() {
		if a.Alarm == kind {
			ids = append(ids, a.MemberID)
		}
	}
	slices.Sort(ids)
	return ids
}

// StoreAlarm says why the metadata store in this process takes no writes, naming the
// controllers whose files are the cause; nil if it does, or if it is in another process.
// That of a full one is an [ErrStoreFull]. It asks nobody, so it answers without a
// majority too.
func (c *Controller) StoreAlarm() error {
	e := c.up.Load()
	if e == nil || e.member == nil {
		return nil
	}
	members := membersOf(e.member.Server.Cluster().Members())
	if ids := e.raised(pb.AlarmType_CORRUPT); len(ids) > 0 {
		return fmt.Errorf("metadata store differs at %s: remove it with lockstep controllers remove, and have it join with an empty directory", nameMembers(ids, members))
	}
	if ids := e.raised(pb.AlarmType_NOSPACE); len(ids) > 0 {
		return fmt.Errorf("%w of %d bytes at %s: no elections, topics or configs are written until it has made room, which is tried at once; if this stays, raise metadata.etcd.quota.bytes on all controllers and restart them",
			ErrStoreFull, c.o.QuotaBytes, nameMembers(ids, members))
	}
	return nil
}

// nameMembers is for messages: "controller 2 and a former controller".
func nameMembers(ids []uint64, members []memberInfo) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = "a former controller"
		for _, m := range members {
			if m.ID == id {
				names[i] = fmt.Sprintf("controller %d", m.Node)
			}
		}
	}
	return strings.Join(names, " and ")
}

// registerStoreGauges shows how full the store in this process is.
func (c *Controller) registerStoreGauges() {
	if c.etcd.member == nil {
		return
	}
	e := c.etcd
	obs.Gauge("lockstep_metadata_store_bytes", func() float64 { return float64(e.member.Server.Backend().Size()) })
	obs.Gauge("lockstep_metadata_store_bytes_in_use", func() float64 { return float64(e.member.Server.Backend().SizeInUse()) })
	obs.Gauge("lockstep_metadata_store_quota_bytes", func() float64 { return float64(c.o.QuotaBytes) })
	obs.Gauge("lockstep_metadata_store_full", func() float64 { return float64(len(e.raised(pb.AlarmType_NOSPACE))) })
}
