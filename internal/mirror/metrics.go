package mirror

import (
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/obs"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Series of this package. A value that is not known is NaN, never zero: a lag of
// zero means that nothing is missing.
const (
	metricPartitions  = "lockstep_mirror_partitions"        // state
	metricLag         = "lockstep_mirror_lag_records"       // mirror, topic, partition
	metricLagSeconds  = "lockstep_mirror_lag_seconds"       // mirror, topic, partition
	metricSourceEnd   = "lockstep_mirror_source_end"        // mirror, topic, partition
	metricFetchAge    = "lockstep_mirror_fetch_age_seconds" // mirror, topic, partition
	metricRepaired    = "lockstep_mirror_ranges_repaired_total"
	metricCut         = "lockstep_mirror_records_cut_total"          // –
	metricAborted     = "lockstep_mirror_transactions_aborted_total" // –
	metricGaps        = "lockstep_mirror_gaps_total"                 // –
	metricBumps       = "lockstep_mirror_epoch_bumps_total"          // –
	metricSync        = "lockstep_mirror_sync_total"                 // mirror, task
	metricSyncErrors  = "lockstep_mirror_sync_errors_total"          // mirror, task
	metricSyncAge     = "lockstep_mirror_sync_age_seconds"           // mirror, task
	metricTopics      = "lockstep_mirror_topics"                     // mirror
	metricGroupErrors = "lockstep_mirror_group_errors_total"         // mirror
	metricGroups      = "lockstep_mirror_groups_synced_total"        // mirror
)

// stateNumbers lists the states with UNKNOWN first, as they are counted.
var stateNumbers = [...]metadata.MirrorState{
	metadata.StateUnknown, metadata.StatePreparing, metadata.StateEpochFencing, metadata.StateULERecovery,
	metadata.StateMirroring, metadata.StatePausing, metadata.StatePaused, metadata.StateStopping,
	metadata.StateStopped, metadata.StateFailed,
}

type managerMetrics struct {
	recordsCut *metrics.Counter
	aborted    *metrics.Counter // of the source's transactions, by failovers
	repaired   *metrics.Counter
	gaps       *metrics.Counter
	bumps      *metrics.Counter
}

func (m *Manager) initMetrics() {
	m.metrics = managerMetrics{
		recordsCut: obs.Counter(metricCut), aborted: obs.Counter(metricAborted), repaired: obs.Counter(metricRepaired), gaps: obs.Counter(metricGaps), bumps: obs.Counter(metricBumps),
	}
	for i, state := range stateNumbers {
		m.gauge(metricPartitions, func() float64 { return float64(m.stateCounts[i].Load()) }, "state", stateLabel(state))
	}
}

func (m *Manager) dropMetrics() {
	for _, state := range stateNumbers {
		obs.Unregister(metricPartitions, "state", stateLabel(state))
	}
	m.shared.RLock()
	defer m.shared.RUnlock()
	for _, r := range m.shared.replicas {
		r.dropMetrics()
	}
}

func stateLabel(s metadata.MirrorState) string { return strings.ToLower(s.String()) }

func (m *Manager) countState(s metadata.MirrorState, by int64) {
	m.stateCounts[int(s)+1].Add(by) // UNKNOWN is -1
}

// gauge registers one. A simulation has many managers in one process, which end
// without a word.
func (m *Manager) gauge(name string, value func() float64, labels ...string) {
	if m.sched == nil {
		obs.Gauge(name, value, labels...)
	}
}

func (r *replica) labels() []string {
	return []string{"mirror", r.peer.name, "topic", r.key.topic, "partition", strconv.Itoa(int(r.key.index))}
}

func (r *replica) addMetrics() {
	labels, source := r.labels(), r.peer
	r.m.gauge(metricLag, func() float64 { return r.lag() }, labels...)
	r.m.gauge(metricLagSeconds, func() float64 { return r.lagSeconds(source) }, labels...)
	r.m.gauge(metricSourceEnd, func() float64 {
		if pos, _, ok := r.lastSeen(); ok {
			return float64(pos.SourceHighWatermark)
		}
		return math.NaN()
	}, labels...)
	r.m.gauge(metricFetchAge, func() float64 {
		if pos, _, ok := r.lastSeen(); ok {
			return r.m.o.Clock.Now().Sub(pos.FetchedAt).Seconds()
		}
		return math.NaN()
	}, labels...)
}

func (r *replica) dropMetrics() {
	labels := r.labels()
	for _, name := range []string{metricLag, metricLagSeconds, metricSourceEnd, metricFetchAge} {
		obs.Unregister(name, labels...)
	}
}

// lag is how many records the source had at the last fetch that consumers here
// cannot read yet.
func (r *replica) lag() float64 {
	pos, _, ok := r.lastSeen()
	p := r.m.o.Partitions.ByID(r.id.topic, r.id.index)
	if !ok || p == nil || !r.attached() {
		return math.NaN()
	}
	return float64(max(0, pos.SourceHighWatermark-p.HighWatermark()))
}

// lagSeconds bounds the age of the oldest record that is not here (see judge).
func (r *replica) lagSeconds(source *peer) float64 {
	if _, lag := r.sighting(source).judge(); lag >= 0 {
		return lag.Seconds()
	}
	return math.NaN()
}

// timestamp is a time that one goroutine sets and others read; zero is never.
type timestamp struct{ nanos atomic.Int64 }

func (t *timestamp) set(now time.Time) { t.nanos.Store(now.UnixNano()) }

func (t *timestamp) age(now time.Time) float64 {
	n := t.nanos.Load()
	if n == 0 {
		return math.NaN()
	}
	return now.Sub(time.Unix(0, n)).Seconds()
}

// syncTask is one step of the refresh, which can fail for itself (W10).
type syncTask string

const (
	syncSource    syncTask = "source"  // reach it, and its cluster id
	syncTopics    syncTask = "topics"  // leaders, growth, deletion
	syncConfigs   syncTask = "configs" // topic configs
	syncGroups    syncTask = "groups"  // committed offsets
	syncACLs      syncTask = "acls"
	syncDiscovery syncTask = "discovery"
)

var syncTasks = []syncTask{syncSource, syncTopics, syncConfigs, syncGroups, syncACLs, syncDiscovery}

// syncHealth is what is known of one task.
type syncHealth struct {
	rounds, errors *metrics.Counter
	last           timestamp // last success
	// lastError is that of the last round, nil if it succeeded; written by the refresh
	// goroutine, which logs it when it changes.
	lastError atomic.Pointer[string]
}

func (p *peer) initMetrics() {
	p.health = make(map[syncTask]*syncHealth, len(syncTasks))
	for _, task := range syncTasks {
		h := &syncHealth{
			rounds: obs.Counter(metricSync, "mirror", p.name, "task", string(task)),
			errors: obs.Counter(metricSyncErrors, "mirror", p.name, "task", string(task)),
		}
		p.health[task] = h
		p.m.gauge(metricSyncAge, func() float64 { return h.last.age(p.m.o.Clock.Now()) }, "mirror", p.name, "task", string(task))
	}
	p.groupsSynced = obs.Counter(metricGroups, "mirror", p.name)
	p.groupErrors = obs.Counter(metricGroupErrors, "mirror", p.name)
	p.m.gauge(metricTopics, func() float64 {
		return float64(len(p.m.o.Controller.Image().MirrorTopics(p.name)))
	}, "mirror", p.name)
}

func (p *peer) dropMetrics() {
	for _, task := range syncTasks {
		for _, name := range []string{metricSync, metricSyncErrors, metricSyncAge} {
			obs.Unregister(name, "mirror", p.name, "task", string(task))
		}
	}
	for _, name := range []string{metricGroups, metricGroupErrors, metricTopics} {
		obs.Unregister(name, "mirror", p.name)
	}
}

// note counts a round of a task. An error is logged when it is another one than
// in the round before, so that an outage writes one line.
func (p *peer) note(task syncTask, err error) {
	h := p.health[task]
	h.rounds.Inc()
	if err == nil {
		if h.lastError.Swap(nil) != nil {
			p.log.Info("sync works again", "task", string(task))
		}
		h.last.set(p.m.o.Clock.Now())
		return
	}
	h.errors.Inc()
	text := err.Error()
	if was := h.lastError.Swap(&text); was == nil || *was != text {
		p.log.Warn("sync failed", "task", string(task), "err", err)
	}
}

// syncs tells how each recurring task of a mirror does, as far as this broker does
// it.
func (p *peer) syncs() []wire.MirrorSync {
	out := make([]wire.MirrorSync, 0, len(syncTasks))
	for _, task := range syncTasks {
		if task == syncACLs && !p.m.o.Authorizer {
			continue // it will never be done
		}
		h := p.health[task]
		s := wire.MirrorSync{Task: string(task), AgeMillis: -1, Error: h.lastError.Load()}
		if age := h.last.age(p.m.o.Clock.Now()); !math.IsNaN(age) {
			s.AgeMillis = int64(age * 1000)
		}
		out = append(out, s)
	}
	return out
}
