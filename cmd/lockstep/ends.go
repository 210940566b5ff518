package main

import (
	"context"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

const (
	// endsInterval lies between two looks for partitions that wait to hear how far
	// our logs reach. They are told again as long as they wait: a new controller has
	// not heard what the one before it was told.
	endsInterval = time.Second
	// maxEnds bounds one report.
	maxEnds = 1000
)

// endOf answers how far the log of a replica here reaches; false if it is not open.
type endOf func(topic metadata.TopicID, partition int32) (lastEpoch int32, end int64, ok bool)

// waitedEnds are the ends of this broker's logs that partitions wait for because all
// their replicas came back from an unclean stop (reliability rule 8), at most maxEnds.
func waitedEnds(img *metadata.Image, broker int32, of endOf) []controller.ReplicaEnd {
	var ends []controller.ReplicaEnd
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			if !p.WaitsForEnds() || !slices.Contains(p.LastKnownELR, broker) {
				continue
			}
			if epoch, end, ok := of(t.ID, p.Index); ok {
				ends = append(ends, controller.ReplicaEnd{Topic: t.ID, Partition: p.Index, LastEpoch: epoch, End: end})
			}
			if len(ends) == maxEnds {
				return ends
			}
		}
	}
	return ends
}

// reportEnds tells the controller what partitions wait for, until ctx ends.
func (b *broker) reportEnds(ctx context.Context, clk clock.Clock) {
	logger := b.logger.With("part", "member")
	seen, waiting := int64(-1), false
	for {
		t := clk.NewTimer(endsInterval)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return
		}
		img := b.controller.Image()
		if img.Revision == seen && !waiting || b.applied.Load() < img.Revision {
			continue // nothing new, or our logs are not open yet
		}
		seen = img.Revision
		ends := waitedEnds(img, b.nodeID, b.logEnd)
		if waiting = len(ends) > 0; !waiting {
			continue
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := b.controller.ReportEnds(call, b.nodeID, b.brokerEpoch(), ends)
		cancel()
		if err != nil && ctx.Err() == nil {
			logger.Warn("could not tell how far logs reach that have no leader", "partitions", len(ends), "err", err)
		} else if err == nil {
			logger.Info("told how far logs reach that have no leader after unclean stops", "partitions", len(ends))
		}
	}
}

// tellEnds keeps the controller told until the broker stops.
func (b *broker) tellEnds() {
	ctx, cancel := context.WithCancel(context.Background())
	b.running.Go(func() { b.reportEnds(ctx, clock.System()) })
	go func() {
		<-b.stopped
		cancel()
	}()
}

// logEnd is an endOf over the open partitions.
func (b *broker) logEnd(topic metadata.TopicID, index int32) (lastEpoch int32, end int64, ok bool) {
	p := b.partitions.ByID(topic, index)
	if p == nil || p.Info().Offline != nil || p.Log().Ready() != nil {
		return 0, 0, false // what its last epoch is shows later
	}
	end, lastEpoch = p.LogEnd()
	return lastEpoch, end, true
}
