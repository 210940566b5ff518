package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	houseInterval = time.Minute
	// alarmInterval is between two looks for alarms, which cost nothing.
	alarmInterval = time.Second
	// A store is rewritten when it is past defragMin and less than half full.
	// That blocks it for about a third of a second per 100 000 keys, so small
	// stores are left alone: they gain nothing.
	defragMin = 64 << 20
	// quotaAlert is the share of the quota from which every round warns. At the
	// quota itself etcd refuses to write.
	quotaAlert = 0.7
	// quotaRoom is the share at which room is made, so that the quota is not reached:
	// etcd compacts by the number of revisions, whatever they hold.
	quotaRoom = 0.85
)

// housekeeper keeps the store small: history is compacted by etcd itself, but the
// file shrinks only by being rewritten. One goroutine owns it.
type housekeeper struct {
	e *store
	o Options
	// raised are the members that have an alarm, and when each was first seen here.
	raised map[uint64]time.Time
	// futile is when the last try to make room gained too little. Where the keys
	// themselves fill the quota that must not be all that the store does.
	futile time.Time
}

func newHousekeeper(e *store, o Options) *housekeeper {
	return &housekeeper{e: e, o: o, raised: make(map[uint64]time.Time)}
}

// run goes on until ctx ends.
func (h *housekeeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := keepRoom(h.o.Dir); err != nil {
			h.o.Logger.Warn("no room is kept for the metadata store", "dir", h.o.Dir, "error", err)
		}
		for next := h.o.Clock.Now().Add(houseInterval); ctx.Err() == nil && h.o.Clock.Now().Before(next); {
			pause(ctx, h.o.Clock, alarmInterval)
			h.told(ctx, h.look(ctx))
		}
		if ctx.Err() == nil {
			h.told(ctx, h.round())
		}
	}
}

func (h *housekeeper) told(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		h.o.Logger.Warn("metadata housekeeping failed", "error", err)
	}
}

// round rewrites a file that is mostly holes, and warns of one that fills up.
func (h *housekeeper) round() error {
	size, used := h.size()
	if float64(used) > quotaAlert*float64(h.o.QuotaBytes) {
		h.o.Logger.Error("metadata store is filling up; at its quota nothing can be written: raise metadata.etcd.quota.bytes on all controllers and restart them",
			"bytes", used, "quota_bytes", h.o.QuotaBytes)
	}
	if size < defragMin || used*2 > size {
		return nil
	}
	h.o.Logger.Info("rewriting the metadata store", "bytes", size, "bytes_in_use", used)
	return h.e.defragment()
}

// size is that of the file, and what of it is used.
func (h *housekeeper) size() (file, used int64) {
	b := h.e.member.Server.Backend()
	return b.Size(), b.SizeInUse()
}

// look makes room where it is short, and takes alarms back as planAlarms says.
func (h *housekeeper) look(ctx context.Context) error {
	now, members := h.o.Clock.Now(), membersOf(h.e.member.Server.Cluster().Members())
	known := h.raised
	h.raised = make(map[uint64]time.Time)
	for _, id := range h.e.raised(pb.AlarmType_NOSPACE) {
		since, ok := known[id]
		if !ok {
			since = now
			h.o.Logger.Error("metadata store has reached its quota: no elections, topics or configs are written until there is room, which is made now; if this comes back soon, raise metadata.etcd.quota.bytes on all controllers and restart them",
				"full_at", nameMembers([]uint64{id}, members), "quota_bytes", h.o.QuotaBytes)
		}
		h.raised[id] = since
	}
	if h.short() && (h.futile.IsZero() || now.Sub(h.futile) >= houseInterval) {
		h.futile = time.Time{}
		if err := h.makeRoom(ctx); err != nil {
			return err
		}
		if h.short() {
			h.futile = now
			h.o.Logger.Error("metadata store is filled by its keys, not by history: raise metadata.etcd.quota.bytes on all controllers and restart them",
				"quota_bytes", h.o.QuotaBytes)
		}
	}
	self := uint64(h.e.member.Server.MemberID())
	p := planAlarms(self, members, h.raised, now)
	if size, _ := h.size(); p.own && size+maxTxnBytes < h.o.QuotaBytes {
		p.others = append(p.others, self)
	}
	for _, id := range p.others {
		alarm := clientv3.AlarmMember{MemberID: id, Alarm: pb.AlarmType_NOSPACE}
		if _, err := h.e.client.AlarmDisarm(ctx, &alarm); err != nil {
			return fmt.Errorf("take back the alarm of the metadata store: %w", err)
		}
		h.o.Logger.Warn("metadata store can be written again", "was_full_at", nameMembers([]uint64{id}, members))
	}
	return nil
}

// short reports whether the file is near its quota.
func (h *housekeeper) short() bool {
	size, _ := h.size()
	return float64(size) >= quotaRoom*float64(h.o.QuotaBytes)
}

// makeRoom compacts, and then rewrites: each alone changes nothing.
func (h *housekeeper) makeRoom(ctx context.Context) error {
	before, _ := h.size()
	h.o.Logger.Info("compacting and rewriting the metadata store", "bytes", before)
	if err := h.e.compact(ctx); err != nil {
		return err
	}
	if err := h.e.defragment(); err != nil {
		return err
	}
	after, _ := h.size()
	h.o.Logger.Info("metadata store is compacted and rewritten", "bytes", after, "were", before)
	return nil
}

// compact removes all history, and waits until it is gone from this member's file. Who
// finds that another member has compacted this far has waited for the same.
func (e *store) compact(ctx context.Context) error {
	resp, err := e.client.Get(ctx, keyFormat)
	if err != nil {
		return fmt.Errorf("compact metadata store: %w", err)
	}
	done := make(chan error, 1)
	go func() { // etcd waits for its disk whatever becomes of ctx, and for ever if it stops
		_, err := e.client.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
		done <- err
	}()
	select {
	case err = <-done:
	case <-e.stopped():
		err = errors.New("it stopped")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact metadata store: %w", err)
	}
	return nil
}
