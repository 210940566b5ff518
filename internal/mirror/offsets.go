package mirror

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Only the leader of a partition knows how far it is. Who has to know of all
// partitions of a mirror, asks every leader once (key 107).

// offsetsTimeout bounds that question. Whoever describes a mirror wants the rest
// when one broker hangs.
const offsetsTimeout = 2 * time.Second

// LocalOffsets is how far a mirror partition is that this broker leads. What is
// not known is -1; offsets of both sides mean nothing outside of the states in
// which something is copied (P9). With epochs the log's history is told, if it is known.
func (m *Manager) LocalOffsets(topic string, index int32, epochs bool) (wire.MirrorOffsets, bool) {
	t := m.o.Controller.Image().Topic(topic)
	p := t.Partition(index)
	if p == nil {
		return wire.MirrorOffsets{}, false
	}
	ours := m.o.Partitions.ByID(t.ID, index)
	if ours == nil {
		return wire.MirrorOffsets{}, false
	}
	info := ours.Info()
	if !info.Leader || info.Offline != nil {
		return wire.MirrorOffsets{}, false
	}
	end, last := ours.LogEnd()
	o := wire.MirrorOffsets{Partition: index, SourceOffset: -1, DestinationOffset: -1, LogStart: info.LogStart, LogEnd: end, LastEpoch: last}
	if epochs && ours.HistoryKnown() {
		for _, e := range ours.ReadLog().Epochs() {
			o.Epochs = append(o.Epochs, wire.EpochStart{Epoch: e.Epoch, Start: e.Start})
		}
	}
	r := m.replicaOf(nameKey{topic, index})
	state := t.MirrorState(p)
	if source := m.peer(t.Attachment().Mirror); r != nil && source != nil && state != metadata.StateStopped {
		o.Progress = r.progress(source)
	}
	if r == nil || !copies(state) {
		return o, true
	}
	pos, _, ok := r.lastSeen()
	if state == metadata.StateMirroring {
		// What was seen before an interruption would show lag 0 until the first
		// answer after it, whatever the source has written meanwhile.
		ok = false
	}
	if a := r.current(); a != nil {
		if now := a.pipeline.Position(); now.SourceHighWatermark >= 0 {
			pos, ok = now, true
		}
	}
	if ok {
		o.SourceOffset, o.DestinationOffset = pos.SourceHighWatermark, ours.HighWatermark()
	}
	return o, true
}

// copies says in which states the offsets of both sides mean something (P9).
func copies(s metadata.MirrorState) bool {
	return s == metadata.StateMirroring || s == metadata.StateEpochFencing || s == metadata.StateULERecovery
}

// offsets asks the leaders of a mirror's partitions how far they are, each broker
// once and all at the same time, and the one that does the mirror's own work how
// that goes. A partition whose leader does not answer, or is not known, is not in the
// result.
func (m *Manager) offsets(ctx context.Context, mirror string, topics []*metadata.Topic, epochs bool, want func(*metadata.Topic, *metadata.Partition) bool) (map[nameKey]wire.MirrorOffsets, []wire.MirrorSync) {
	found := make(map[nameKey]wire.MirrorOffsets)
	ask := make(map[int32]*wire.ReadMirrorOffsetsRequest)
	syncs := m.Syncs(mirror)
	if o := owner(m.o.Controller.Image(), mirror); o >= 0 && o != m.o.NodeID && m.o.Ask != nil {
		ask[o] = &wire.ReadMirrorOffsetsRequest{MirrorName: mirror}
	}
	for _, t := range topics {
		byLeader := make(map[int32][]int32)
		for _, p := range t.Partitions {
			switch {
			case !want(t, p) || p.Leader < 0:
			case p.Leader == m.o.NodeID:
				if o, ok := m.LocalOffsets(t.Name, p.Index, epochs); ok {
					found[nameKey{t.Name, p.Index}] = o
				}
			case m.o.Ask != nil:
				byLeader[p.Leader] = append(byLeader[p.Leader], p.Index)
			}
		}
		for leader, indexes := range byLeader {
			if ask[leader] == nil {
				ask[leader] = &wire.ReadMirrorOffsetsRequest{MirrorName: mirror}
			}
			ask[leader].Epochs = epochs
			ask[leader].Topics = append(ask[leader].Topics, wire.ReadMirrorOffsetsTopic{TopicName: t.Name, Partitions: indexes})
		}
	}
	if len(ask) == 0 {
		return found, syncs
	}
	ctx, cancel := m.sched.within(ctx, offsetsTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, leader := range slices.Sorted(maps.Keys(ask)) {
		req := ask[leader]
		work := func() {
			resp, err := m.o.Ask(ctx, leader, req)
			if err != nil {
				m.o.Logger.Debug("offsets of mirror partitions led elsewhere are unknown", "mirror", mirror, "broker", leader, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			takeOffsets(found, req, resp)
			if answer, ok := resp.(*wire.ReadMirrorOffsetsResponse); ok && len(answer.Syncs) > 0 {
				syncs = answer.Syncs
			}
		}
		if m.sched == nil {
			wg.Go(work)
		} else {
			work()
		}
	}
	wg.Wait()
	return found, syncs
}

// Syncs tells how a mirror's recurring tasks do, if this broker is the one that does
// them.
func (m *Manager) Syncs(mirror string) []wire.MirrorSync {
	p := m.peer(mirror)
	if p == nil || !m.owns(m.o.Controller.Image(), mirror) {
		return nil
	}
	return p.syncs()
}

// takeOffsets reads an answer: only what was asked counts.
func takeOffsets(found map[nameKey]wire.MirrorOffsets, req *wire.ReadMirrorOffsetsRequest, resp kmsg.Response) {
	answer, ok := resp.(*wire.ReadMirrorOffsetsResponse)
	if !ok {
		return
	}
	asked := make(map[nameKey]bool)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			asked[nameKey{t.TopicName, p}] = true
		}
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if key := (nameKey{t.TopicName, p.Partition}); asked[key] {
				found[key] = p
			}
		}
	}
}
