package kafka

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/cores"
)

// Requests that name thousands of subjects take a processor for many
// milliseconds each. As many of them at a time as there are processors, and
// every small request, a record of a hundred bytes and its fsync's return among
// them, waits behind several: the scheduler gives each 10 ms. So some processors
// are kept for what is small.

const (
	// heavyBody is the size from which on a request counts as heavy, where its
	// body is decoded: one byte in it may cost a microsecond. Records are not
	// decoded, and Produce is never heavy.
	heavyBody = 4 << 10
	// heavyParts is the same for a fetch, whose session may say more than its body.
	heavyParts = 128
	// heavyPatience is how long a heavy request waits for its turn. Then it is
	// served beside those that have one: turns are fairness and no limit, and
	// nothing may wait in a circle for them.
	heavyPatience = time.Second
)

// turns is how many heavy requests are worked on at a time.
type turns struct {
	clock clock.Clock
	taken chan struct{}
}

func newTurns(n int, c clock.Clock) *turns {
	return &turns{clock: c, taken: make(chan struct{}, n)}
}

// heavyAtOnce keeps a quarter of the processors, and at least one, for the rest.
func heavyAtOnce() int {
	n := cores.Count()
	return max(1, n-max(1, n/4))
}

// take waits for a turn and tells whether there was one before the patience or
// ctx ended, and how long that took.
func (t *turns) take(ctx context.Context) (ok bool, waited time.Duration) {
	select {
	case t.taken <- struct{}{}:
		return true, 0
	default:
	}
	begun := t.clock.Now()
	timer := t.clock.NewTimer(heavyPatience)
	defer timer.Stop()
	select {
	case t.taken <- struct{}{}:
		ok = true
	case <-timer.C():
	case <-ctx.Done():
	}
	return ok, t.clock.Now().Sub(begun)
}

func (t *turns) leave() { <-t.taken }

// lookout is called before what may take long. Those who can run go first, and an
// idle processor wakes up, which looks at the network from then on: where the
// goroutine at hand was started by the thread that had looked there, nobody else
// does before the runtime notices, which it does every 10 ms, and until then every
// other client waits though a processor is idle.
func lookout() { runtime.Gosched() }

// takeTurn is for the connection's goroutine, before it works long on a request.
// It may be called again while it has its turn.
func (c *conn) takeTurn() {
	if !c.hasTurn {
		var waited time.Duration
		c.hasTurn, waited = c.server.turns.take(c.ctx)
		c.queued += waited
		lookout()
	}
}

// leaveTurn is called before whatever waits: for others, the disk, the peer.
func (c *conn) leaveTurn() {
	if c.hasTurn {
		c.hasTurn = false
		c.server.turns.leave()
	}
}

// computes tells whether a key's handler only works, so that a heavy request
// keeps its turn in it. The others wait for the log, the metadata or other clients.
func computes(key int16) bool {
	switch kmsg.Key(key) {
	case kmsg.Metadata, kmsg.ListOffsets, kmsg.OffsetFetch, kmsg.DescribeGroups, kmsg.ListGroups, kmsg.OffsetForLeaderEpoch,
		kmsg.DescribeACLs, kmsg.DescribeConfigs, kmsg.DescribeLogDirs, kmsg.DescribeClientQuotas, kmsg.DescribeUserSCRAMCredentials,
		kmsg.DescribeProducers, kmsg.DescribeTransactions, kmsg.ListTransactions, kmsg.ConsumerGroupDescribe, kmsg.DescribeTopicPartitions:
		return true
	}
	return false
}

// asksForAll tells whether a small request has a large answer.
func asksForAll(body kmsg.Request) bool {
	switch req := body.(type) {
	case *kmsg.MetadataRequest:
		return req.Topics == nil || req.Version == 0 && len(req.Topics) == 0
	case *kmsg.DescribeLogDirsRequest: // all partitions are looked at, whichever are asked for
		return true
	case *kmsg.OffsetFetchRequest:
		return slices.ContainsFunc(req.Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return g.Topics == nil }) ||
			req.Version < 8 && req.Topics == nil
	}
	return false
}
