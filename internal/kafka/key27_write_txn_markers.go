package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// WriteTxnMarkers (v1-v2)
//
// Behavior:
//   - Ends transactions in partitions of this broker: what a transaction
//     coordinator asks of partition leaders, and what an operator does with
//     `kafka-transactions.sh abort` to a transaction that no coordinator knows any
//     more (KIP-664).
//   - Each partition is answered when its marker is durable, all of one request
//     together.
//   - Needs Alter or ClusterAction on the cluster.
//   - Markers are fenced by the producer's epoch and by the coordinator's.
//
// Version notes:
//   - v1: flexible
//   - v2: the transaction's version; from 2 on the marker has the producer's next
//     epoch
//
// Not done: v0, which no client sends any more. To our own partitions our own
// coordinator sends nothing: it calls a MarkerWriter (see MarkerSender).
func (s *Server) registerWriteTxnMarkers() {
	s.register(27, 1, 2, s.writeTxnMarkers)
}

func (s *Server) writeTxnMarkers(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.WriteTxnMarkersRequest)
	var resp kmsg.WriteTxnMarkersResponse
	allowed := s.allowedOr(r, s.visible(r, authz.Alter, authz.Cluster, authz.ClusterName), authz.ClusterAction, authz.Cluster, authz.ClusterName)
	answers := s.writeMarkers(r, req, allowed)
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	for i := range req.Markers {
		rm, errs := &req.Markers[i], answers[i]
		out := kmsg.WriteTxnMarkersResponseMarker{ProducerID: rm.ProducerID}
		for _, t := range rm.Topics {
			ot := kmsg.WriteTxnMarkersResponseMarkerTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				code, _ := errorCode(errs[0])
				errs = errs[1:]
				ot.Partitions = append(ot.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: code})
			}
			out.Topics = append(out.Topics, ot)
		}
		resp.Markers = append(resp.Markers, out)
	}
	return &resp, nil
}

// markersAtOnce of a request are written at the same time; each waits for
// replicas and disks.
const markersAtOnce = 64

// writeMarkers writes all of a request, and returns the errors of each.
func (s *Server) writeMarkers(r *request, req *kmsg.WriteTxnMarkersRequest, allowed bool) [][]error {
	w := MarkerWriter{Partitions: s.o.Partitions, Groups: s.o.Groups}
	answers := make([][]error, len(req.Markers))
	var writing sync.WaitGroup
	room := make(chan struct{}, markersAtOnce)
	for i := range req.Markers {
		rm := &req.Markers[i]
		var parts []group.TopicPartition
		for _, t := range rm.Topics {
			for _, p := range t.Partitions {
				parts = append(parts, group.TopicPartition{Topic: t.Topic, Partition: p})
			}
		}
		m := partition.Marker{
			ProducerID: rm.ProducerID, ProducerEpoch: rm.ProducerEpoch, Commit: rm.Committed,
			CoordinatorEpoch: rm.CoordinatorEpoch, Version: int(rm.TransactionVersion),
		}
		if !allowed {
			answers[i] = slices.Repeat([]error{errClusterDenied}, len(parts))
			continue
		}
		room <- struct{}{}
		writing.Go(func() {
			answers[i] = w.Write(r.ctx, m, parts)
			<-room
		})
	}
	writing.Wait()
	return answers
}

// MarkerWriter ends transactions in the partitions of this broker: for the
// transaction coordinator, and for WriteTxnMarkers.
type MarkerWriter struct {
	Partitions *partition.Manager
	Groups     *group.Coordinator // nil: without groups
}

// errUnanswered stands for the answer of a partition until it comes.
var errUnanswered = errors.New("no answer yet")

// Write writes one producer's marker to each partition, and returns an error
// for each once all are durable or refused, in the words of internal/partition
// and internal/producer. What ctx ends before may be written all the same.
func (w MarkerWriter) Write(ctx context.Context, m partition.Marker, parts []group.TopicPartition) []error {
	errs := make([]error, len(parts))
	type result struct {
		i   int
		err error
	}
	results := make(chan result, len(parts))
	for i, tp := range parts {
		if tp.Topic == group.TopicName && w.Groups != nil {
			// The offsets in the transaction appear, or go, with the marker.
			go func() { results <- result{i, asLeader(w.Groups.CompleteTxn(ctx, tp.Partition, m))} }()
			continue
		}
		p := w.Partitions.Get(tp.Topic, tp.Partition)
		if p == nil {
			results <- result{i, partition.ErrUnknown}
			continue
		}
		p.AppendMarker(partition.AnyEpoch, m, func(err error) { results <- result{i, err} })
	}
	for i := range errs {
		errs[i] = errUnanswered
	}
	for range parts {
		select {
		case r := <-results:
			errs[r.i] = r.err
		case <-ctx.Done():
			for i := range errs {
				if errs[i] == errUnanswered {
					errs[i] = ctx.Err()
				}
			}
			return errs
		}
	}
	return errs
}

// asLeader tells of a group coordinator that is not ready in the words of a
// partition's leader: who asks for markers knows leaders only.
func asLeader(err error) error {
	if errors.Is(err, group.ErrNotCoordinator) || errors.Is(err, group.ErrLoading) || errors.Is(err, group.ErrNotAvailable) {
		return fmt.Errorf("%w: %v", partition.ErrNotLeader, err)
	}
	return err
}
