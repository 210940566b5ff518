package pipeline

import (
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// prepare fills the request with all partitions that are not backing off. It
// returns how long the shortest backoff still runs, 0 if none does.
//
// A source fills its response in the request's order until it is full. The
// request therefore begins behind the last partition that brought data the
// time before, so that no partition starves and a batch above the response's
// limit comes first one day, when it is sent whole.
func (w *Worker) prepare() (wait time.Duration) {
	w.asked = w.asked[:0]
	w.req.Partitions = w.req.Partitions[:0]
	var now time.Time
	for i := range w.parts {
		p := w.parts[(w.next+i)%len(w.parts)]
		if !p.retryAt.IsZero() {
			if now.IsZero() {
				now = w.o.Clock.Now()
			}
			if p.retryAt.Sub(now) <= 0 && p.full(now) {
				w.backoff(p)
			}
			if left := p.retryAt.Sub(now); left > 0 {
				if wait == 0 || left < wait {
					wait = left
				}
				continue
			}
			p.retryAt = time.Time{}
		}
		if p.held() {
			if now.IsZero() {
				now = w.o.Clock.Now()
			}
			p.retryAt = now.Add(heldPause)
			if wait == 0 || heldPause < wait {
				wait = heldPause
			}
			continue
		}
		w.ask(p)
	}
	w.req.MinBytes, w.req.MaxBytes = w.o.MinBytes, w.o.MaxBytes
	w.req.MaxWait = w.o.MaxWait
	if wait > 0 && wait < w.req.MaxWait {
		// The long poll must not outlast a partition's backoff.
		w.req.MaxWait = wait
	}
	return wait
}

func (w *Worker) ask(p *Pipeline) {
	_, source := p.epochs()
	p.fetchOffset, p.lastEpoch = p.o.Target.LogEnd()
	p.mentioned = false
	w.asked = append(w.asked, p)
	start, durable := int64(-1), int64(-1) // a mirror is no replica: the source must not wait for us (W33)
	if p.follower != nil {
		start, durable = p.follower.Ends()
	}
	w.req.Partitions = append(w.req.Partitions, sdk.FetchPartition{
		PartitionKey:       p.o.Key,
		Offset:             p.fetchOffset,
		CurrentLeaderEpoch: source,
		LastFetchedEpoch:   p.lastEpoch,
		LogStart:           start,
		DurableEnd:         durable,
		MaxBytes:           max(p.maxBytes, w.o.PartitionMaxBytes),
	})
}

// rotate makes the next request begin behind the last partition with data.
func (w *Worker) rotate() {
	if w.lastHit < 0 || len(w.parts) == 0 {
		return
	}
	last := w.asked[w.lastHit]
	for i, p := range w.parts {
		if p == last {
			w.next = (i + 1) % len(w.parts)
			return
		}
	}
}

// find is the asked partition with the key. Responses keep the request's
// order, mostly, so the search begins where the last one ended.
func (w *Worker) find(key *sdk.PartitionKey) (int, *Pipeline) {
	for range w.asked {
		if w.cursor >= len(w.asked) {
			w.cursor = 0
		}
		i := w.cursor
		w.cursor++
		if k := &w.asked[i].o.Key; k.Partition == key.Partition && k.TopicID == key.TopicID && k.Topic == key.Topic {
			return i, w.asked[i]
		}
	}
	return -1, nil
}

// Partition implements sdk.FetchHandler for the worker's own session; nobody
// else calls it. An error is one of the connection.
func (w *Worker) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	if w.now.IsZero() {
		w.now = w.o.Clock.Now()
	}
	i, p := w.find(&h.Key)
	if p == nil || !p.isAttached() {
		return nil
	}
	p.mentioned = true
	if h.ErrorCode != 0 {
		w.refuse(p, h)
		return nil
	}
	if h.Diverging != sdk.Undefined {
		e := newEnd(Diverged, fmt.Errorf("%s: source's history ends epoch %d at offset %d, ours goes on to %d",
			p.o.Key, h.Diverging.Epoch, h.Diverging.End, p.fetchOffset))
		e.Diverging = h.Diverging
		w.end(p, e)
		return nil
	}
	if h.RecordBytes > 0 {
		w.lastHit = i
		ok, err := w.receive(p, h, records)
		if err == nil && !p.fullUntil.IsZero() {
			w.report(p, h) // nothing was appended, and the lag has to show it
		}
		if err != nil || !ok {
			return err
		}
	}
	w.acknowledge(p, h)
	return nil
}

// refuse reacts to a partition's error code by the table of spec 9.7.
func (w *Worker) refuse(p *Pipeline, h *sdk.PartitionHeader) {
	cause := kerr.ErrorForCode(h.ErrorCode)
	if known := kerr.TypedErrorForCode(h.ErrorCode); known == nil || known.Code != h.ErrorCode {
		cause = fmt.Errorf("error code %d", h.ErrorCode) // not one that kerr knows
	}
	e := newEnd(Fatal, fmt.Errorf("%s: source answers %w", p.o.Key, cause))
	e.Code = h.ErrorCode
	switch cause {
	case kerr.OffsetOutOfRange:
		e.Reason, e.LogStart = OutOfRange, h.LogStart
		e.Err = fmt.Errorf("%s: source has no offset %d: %w", p.o.Key, p.fetchOffset, cause)
	case kerr.FencedLeaderEpoch, kerr.NotLeaderForPartition:
		e.Reason = NotLeader
		e.NewLeader, e.NewLeaderEpoch = h.LeaderID, h.LeaderEpoch
	case kerr.UnknownTopicID, kerr.InconsistentTopicID:
		e.Reason = UnknownTopicID
	case kerr.UnknownLeaderEpoch, kerr.OffsetNotAvailable, kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable,
		kerr.ThrottlingQuotaExceeded, kerr.ReplicaNotAvailable, kerr.KafkaStorageError, kerr.RequestTimedOut:
		p.countError("transient")
		w.backoff(p)
		return
	}
	w.end(p, e)
}

// confirmEvery is how old the position of a partition may become that the
// source has nothing new to say about. With thousands of them, telling their
// observers after every response would cost more than the busy ones do.
const confirmEvery = time.Second

// confirm tells for the partitions that a response left out that nothing about
// them has changed since the last one.
func (w *Worker) confirm() {
	if w.now.IsZero() {
		w.now = w.o.Clock.Now()
	}
	for _, p := range w.asked {
		if p.mentioned || !p.isAttached() {
			continue
		}
		p.pos.Lock()
		due := !p.pos.FetchedAt.IsZero() && w.now.Sub(p.pos.FetchedAt) >= confirmEvery
		if due {
			p.pos.FetchedAt = w.now
		}
		pos := p.pos.Position
		p.pos.Unlock()
		if due {
			p.o.Observer.Progress(p, pos)
		}
	}
}

// acknowledge closes a good response: log start, position, observer.
func (w *Worker) acknowledge(p *Pipeline, h *sdk.PartitionHeader) {
	if p.follower != nil {
		leader, _ := p.epochs()
		p.follower.FollowHighWatermark(leader, h.HighWatermark) // before the log start, which it bounds
	}
	if start := min(h.LogStart, p.o.Target.HighWatermark()); start > p.followed {
		if !w.advanceStart(p, start) {
			return
		}
	}
	p.refused = false
	w.report(p, h)
}

// report tells the observer how far the partition and its source are.
func (w *Worker) report(p *Pipeline, h *sdk.PartitionHeader) {
	p.pos.Lock()
	p.pos.SourceHighWatermark, p.pos.SourceLogStart = h.HighWatermark, h.LogStart
	p.pos.End, _ = p.o.Target.LogEnd()
	p.pos.FetchedAt = w.now
	pos := p.pos.Position
	p.pos.Unlock()
	p.o.Observer.Progress(p, pos)
}
