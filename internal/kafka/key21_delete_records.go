package kafka

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// DeleteRecords (v0-v2)
//
// Behavior:
//   - Moves a partition's log start up to an offset, or to the high watermark
//     for -1, and answers the new start. Each partition succeeds or fails by
//     itself. Needs Delete on the topic.
//   - A topic of a mirror that is not stopped is refused with 145 (spec 10.5,
//     MIR-257), an internal topic as Kafka does, one that is only compacted with
//     POLICY_VIOLATION.
//   - It is answered when the followers in sync have the new start too, so that
//     the next leader has it, or with REQUEST_TIMED_OUT when the request's time is
//     over: the records are deleted on the leader then, and the followers follow.
//     Kafka waits for replicas out of sync that are alive as well; none of them
//     leads before it has caught up, with the log start too.
//
// Version notes:
//   - v1: throttled after the answer; it is not
//   - v2: flexible
func (s *Server) registerDeleteRecords() {
	s.register(21, 0, 2, s.deleteRecords)
}

func (s *Server) deleteRecords(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DeleteRecordsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	img := s.o.Controller.Image()
	var all []deletion
	for i := range req.Topics {
		name := req.Topics[i].Topic
		topic, allowed := img.Topic(name), s.allowedTopic(r, authz.Delete, name)
		for _, in := range req.Topics[i].Partitions {
			d := deletion{low: -1, err: errTopicDenied}
			if allowed {
				d = s.deleteBelow(topic, in.Partition, in.Offset)
			}
			all = append(all, d)
		}
	}
	s.awaitDeletions(r, all, time.Duration(req.TimeoutMillis)*time.Millisecond)
	resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = req.Topics[i].Topic
		for _, in := range req.Topics[i].Partitions {
			d := all[0]
			all = all[1:]
			if d.err != nil {
				d.low = -1
				s.o.Logger.Debug("records not deleted", "topic", rt.Topic, "partition", in.Partition, "offset", in.Offset, "err", d.err)
			}
			out := kmsg.NewDeleteRecordsResponseTopicPartition()
			out.Partition, out.LowWatermark = in.Partition, d.low
			out.ErrorCode, _ = errorCode(d.err) // the answer has no room for a message
			rt.Partitions = append(rt.Partitions, out)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

// deletion is what became of one partition.
type deletion struct {
	p   *partition.Partition // nil: nothing is waited for
	low int64
	err error
}

// awaitDeletions waits until the followers in sync have deleted too.
func (s *Server) awaitDeletions(r *request, all []deletion, timeout time.Duration) {
	if s.settleDeletions(all) {
		return
	}
	w := partition.NewWaiter()
	for i := range all {
		if p := all[i].p; p != nil {
			defer p.AwaitStarts()()
			p.AddWaiter(w)
			defer p.RemoveWaiter(w)
		}
	}
	ctx, stop := r.conn.untilGone(r.ctx)
	defer stop()
	timer := s.o.Clock.NewTimer(min(max(timeout, 0), s.o.IdleTimeout))
	defer timer.Stop()
	for !s.settleDeletions(all) { // after adding, or a fetch in between would go unseen
		select {
		case <-w.C:
			continue
		case <-timer.C():
		case <-ctx.Done():
		}
		for i := range all {
			if d := &all[i]; d.p != nil {
				d.err = fmt.Errorf("%w: the records are deleted here, and not yet on every replica in sync", partition.ErrTimedOut)
			}
		}
		return
	}
}

// settleDeletions looks who is through, and tells whether all are.
func (s *Server) settleDeletions(all []deletion) bool {
	done := true
	for i := range all {
		d := &all[i]
		if d.p == nil {
			continue
		}
		ok, err := d.p.StartFollowed(d.low)
		if d.err = err; ok || err != nil {
			d.p = nil
		}
		done = done && d.p == nil
	}
	return done
}

func (s *Server) deleteBelow(topic *metadata.Topic, index int32, offset int64) deletion {
	if topic == nil {
		return deletion{low: -1, err: errUnknownPartition}
	}
	if topic.Internal {
		return deletion{low: -1, err: fmt.Errorf("%w: records of an internal topic cannot be deleted", controller.ErrInvalidTopic)}
	}
	p := s.o.Partitions.ByID(topic.ID, index)
	if p == nil {
		return deletion{low: -1, err: missing(topic, index, false)}
	}
	low, err := p.DeleteRecords(offset)
	if err != nil {
		p = nil
	}
	return deletion{p, low, err}
}
