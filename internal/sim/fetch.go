package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/replica"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// fetcher carries the requests of one of a broker's fetchers to their leader.
type fetcher struct {
	b    *broker
	f    *replica.Fetcher
	busy bool // a request is under way
	wake bool // a moment to ask again is set
	// settling is until when the next request waits for the disk.
	settling time.Duration
	asked    int // requests
}

type session struct{}

func (session) Fetch(context.Context, *sdk.FetchRequest, sdk.FetchHandler) error {
	return errors.New("sim: sessions are driven by hand")
}
func (session) Close() error { return nil }

func (b *broker) connect(leader int32) (sdk.Session, error) {
	l := b.w.brokers[leader]
	if l == nil || !l.proc.up || b.w.net.cut[[2]int32{b.id, leader}] || b.w.net.cut[[2]int32{leader, b.id}] {
		return nil, errRefused
	}
	return session{}, nil
}

const (
	settleWait   = 20 * time.Millisecond
	fetchMaxWait = 500 * time.Millisecond
)

// pump sends the next request when there is one.
func (f *fetcher) pump() {
	w := f.b.w
	if f.busy {
		return
	}
	if f.settling > w.loop.now && f.f.Unsynced() {
		f.at(f.settling)
		return
	}
	f.settling = 0
	req, wait := f.f.Request()
	if req == nil {
		if wait > 0 {
			f.at(w.loop.now + wait)
		}
		return
	}
	f.busy = true
	f.asked++
	n := f.asked
	leader := w.brokers[f.f.Leader]
	copied := *req
	copied.Partitions = slices.Clone(req.Partitions)
	p := &parked{from: f.b.id, epoch: f.b.epoch, req: &copied, until: w.loop.now + fetchMaxWait}
	f.f.GoOn(func() { // an interrupt: it goes the way of requests
		if f.busy && f.asked == n {
			w.net.send(f.b.id, &leader.proc, 0, func() { p.poked = true; leader.serveParked() })
		}
	})
	w.net.call(&f.b.proc, &leader.proc, fetchMaxWait+2*time.Second, func(reply func(any)) {
		p.reply = reply
		leader.fetch(p)
	}, func(v any, err error) {
		f.busy = false
		f.f.Respond(func(h sdk.FetchHandler) error {
			if err != nil {
				return err
			}
			for _, r := range v.([]fetched) {
				var body io.Reader = bytes.NewReader(r.records)
				if err := h.Partition(&r.header, body); err != nil {
					return err
				}
			}
			return nil
		})
		if f.f.Unsynced() {
			f.settling = w.loop.now + settleWait
		}
	})
}

// at has the fetcher look again at a moment.
func (f *fetcher) at(when time.Duration) {
	if f.wake {
		return
	}
	f.wake = true
	f.b.w.loop.after(max(0, when-f.b.w.loop.now), &f.b.proc, func() { f.wake = false })
}

// parked is a follower's fetch at its leader.
type parked struct {
	from   int32
	epoch  int64 // of the follower's registration
	req    *sdk.FetchRequest
	until  time.Duration
	poked  bool
	reply  func(any)
	queue  *partition.FollowQueue
	places []place
	sent   []int64 // high watermark that the follower was last told
}

type place struct {
	p *partition.Partition
	f *partition.Follow
}

type fetched struct {
	header  sdk.PartitionHeader
	records []byte
}

// fetch serves a follower: at once if there is anything to tell, else when there is.
func (b *broker) fetch(p *parked) {
	if !b.serving {
		return
	}
	if b.answerFetch(p, false) {
		return
	}
	p.queue = partition.NewFollowQueue()
	for i := range p.req.Partitions {
		if x := b.mgr.ByID(metadata.TopicID(p.req.Partitions[i].TopicID), p.req.Partitions[i].Partition); x != nil {
			f := p.queue.NewFollow(nil)
			x.Follow(f)
			p.places = append(p.places, place{x, f})
		}
	}
	b.parked = append(b.parked, p)
	b.w.loop.after(p.until-b.w.loop.now, &b.proc, func() {}) // settle looks at it
}

func (b *broker) serveParked() {
	kept := b.parked[:0]
	for _, p := range b.parked {
		now := p.poked || b.w.loop.now >= p.until
		select {
		case <-p.queue.C:
			now = now || b.answerFetch(p, false)
			if p.reply == nil {
				continue
			}
		default:
		}
		if now {
			b.answerFetch(p, true)
		} else {
			kept = append(kept, p)
		}
	}
	clear(b.parked[len(kept):])
	b.parked = kept
}

// answerFetch answers if there is something to say, or in any case.
func (b *broker) answerFetch(p *parked, anyway bool) bool {
	if p.reply == nil {
		return true
	}
	var out []fetched
	say := anyway
	left := int(p.req.MaxBytes)
	for i := range p.req.Partitions {
		q := &p.req.Partitions[i]
		r := b.readFor(p, q, left, len(out) == 0)
		left -= len(r.records)
		say = say || len(r.records) > 0 || r.header.ErrorCode != 0 || r.header.Diverging != sdk.Undefined
		out = append(out, r)
	}
	if !say {
		return false
	}
	for _, x := range p.places {
		x.p.Unfollow(x.f)
	}
	p.reply(out)
	p.reply = nil
	return true
}

func (b *broker) readFor(p *parked, q *sdk.FetchPartition, left int, first bool) fetched {
	r := fetched{header: sdk.PartitionHeader{Key: q.PartitionKey, Diverging: sdk.Undefined, HighWatermark: -1, LogStart: -1, LeaderID: -1, LeaderEpoch: -1}}
	x := b.mgr.ByID(metadata.TopicID(q.TopicID), q.Partition)
	if x == nil {
		r.header.ErrorCode = kerr.UnknownTopicOrPartition.Code
		return r
	}
	res, err := x.ReadReplica(partition.ReadRequest{
		Offset: q.Offset, MaxBytes: min(int(q.MaxBytes), left), AtLeastOne: first,
		CurrentLeaderEpoch: q.CurrentLeaderEpoch, LastFetchedEpoch: q.LastFetchedEpoch,
	}, partition.Replica{ID: p.from, BrokerEpoch: p.epoch, Durable: q.DurableEnd})
	r.header.HighWatermark, r.header.LogStart = res.HighWatermark, res.LogStart
	if err != nil {
		r.header.ErrorCode = code(err)
		if r.header.ErrorCode == kerr.NotLeaderForPartition.Code || r.header.ErrorCode == kerr.FencedLeaderEpoch.Code {
			r.header.LeaderID, r.header.LeaderEpoch = res.LeaderID, res.LeaderEpoch
		}
		return r
	}
	if res.Diverging != nil {
		r.header.Diverging = *res.Diverging
		return r
	}
	r.records = make([]byte, res.View.Len())
	if _, err := res.View.ReadAt(r.records, 0); err != nil && !errors.Is(err, io.EOF) {
		b.w.check.fail("READ", "a view cannot be read: %v", err)
	}
	res.View.Release()
	r.header.RecordBytes = len(r.records)
	return r
}

// code is what internal/kafka answers for an error.
func code(err error) int16 {
	for _, x := range []struct {
		err  error
		code int16
	}{
		{partition.ErrUnknown, kerr.UnknownTopicOrPartition.Code},
		{partition.ErrNotLeader, kerr.NotLeaderForPartition.Code},
		{partition.ErrFencedEpoch, kerr.FencedLeaderEpoch.Code},
		{partition.ErrUnknownEpoch, kerr.UnknownLeaderEpoch.Code},
		{partition.ErrOffsetNotAvailable, kerr.OffsetNotAvailable.Code},
		{partition.ErrOutOfRange, kerr.OffsetOutOfRange.Code},
		{partition.ErrStorage, kerr.KafkaStorageError.Code},
	} {
		if errors.Is(err, x.err) {
			return x.code
		}
	}
	return kerr.UnknownServerError.Code
}
