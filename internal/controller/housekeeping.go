package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	houseInterval = time.Minute
	// A store is rewritten when it is past defragMin and less than half full.
	// That blocks it for about a third of a second per 100 000 keys, so small
	// stores are left alone: they gain nothing.
	defragMin = 64 << 20
	// quotaAlert is the share of the quota from which every round warns. At the
	// quota itself etcd refuses to write.
	quotaAlert = 0.7
)

// housekeep keeps the store small: history is compacted by etcd itself, but the
// file shrinks only by being rewritten.
func housekeep(ctx context.Context, e *store, o Options) {
	for {
		if err := keepRoom(o.Dir); err != nil {
			o.Logger.Warn("no room is kept for the metadata store", "dir", o.Dir, "error", err)
		}
		if pause(ctx, o.Clock, houseInterval); ctx.Err() != nil {
			return
		}
		if err := houseRound(ctx, e, o); err != nil && ctx.Err() == nil {
			o.Logger.Warn("metadata housekeeping failed", "error", err)
		}
	}
}

func houseRound(ctx context.Context, e *store, o Options) error {
	if err := disarm(ctx, e, o); err != nil {
		return err
	}
	st, err := storeStatus(ctx, e.client)
	if err != nil {
		return err
	}
	if float64(st.DbSizeInUse) > quotaAlert*float64(o.QuotaBytes) {
		o.Logger.Error("metadata store is filling up; at its quota nothing can be written",
			slog.Int64("bytes", st.DbSizeInUse), slog.Int64("quota_bytes", o.QuotaBytes))
	}
	if st.DbSize < defragMin || st.DbSizeInUse*2 > st.DbSize {
		return nil
	}
	o.Logger.Info("rewriting the metadata store", "bytes", st.DbSize, "bytes_in_use", st.DbSizeInUse)
	return e.defragment()
}

func storeStatus(ctx context.Context, client *clientv3.Client) (*clientv3.StatusResponse, error) {
	st, err := client.Status(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("metadata store status: %w", err)
	}
	return st, nil
}

// disarm leaves the alarm that etcd raises at its quota: compact, rewrite, disarm,
// in that order, because each alone changes nothing. Where the keys themselves
// fill the quota the alarm comes back, and the quota must be raised.
func disarm(ctx context.Context, e *store, o Options) error {
	alarms, err := e.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("metadata store alarms: %w", err)
	}
	// Each member has an alarm of its own: its file is what is full.
	mine := clientv3.AlarmMember{MemberID: uint64(e.member.Server.MemberID()), Alarm: pb.AlarmType_NOSPACE}
	full := false
	for _, a := range alarms.Alarms {
		full = full || a.Alarm == mine.Alarm && a.MemberID == mine.MemberID
	}
	if !full {
		return nil
	}
	o.Logger.Warn("metadata store was full; compacting it", "quota_bytes", o.QuotaBytes)
	st, err := storeStatus(ctx, e.client)
	if err != nil {
		return err
	}
	if _, err := e.client.Compact(ctx, st.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compact metadata store: %w", err)
	}
	if err := e.defragment(); err != nil {
		return err
	}
	if _, err := e.client.AlarmDisarm(ctx, &mine); err != nil {
		return fmt.Errorf("disarm metadata store: %w", err)
	}
	return nil
}
