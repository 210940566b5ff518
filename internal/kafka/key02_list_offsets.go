package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// ListOffsets (v1-v11)
//
// Behavior:
//   - Latest is the high watermark, or with read_committed the last stable
//     offset; a lookup never answers with an offset that a consumer of the same
//     isolation could not read.
//   - A broker of the cluster (replica id, and ClusterAction) sees up to the log's
//     end.
//   - While a log's history is being gathered, what needs it waits for some
//     seconds: librdkafka's look-up by time gives up on the error at once.
//   - Each topic needs Describe.
//   - Everything is local: earliest local is the log start; the last tiered
//     offset, and the first that waits for upload, do not exist.
//   - A timestamp that is a name of a later version, or of none, is
//     UNSUPPORTED_VERSION.
//
// Version notes:
//   - v2: isolation level
//   - v4: current leader epoch in, leader epoch out (KIP-320)
//   - v5: offsets that are not available yet have a code of their own; before,
//     it is that of a leader that is not available, as in Kafka
//   - v6: flexible
//   - v7: timestamp -3, the record with the greatest timestamp (KIP-734)
//   - v8: timestamp -4, the earliest local offset (KIP-405)
//   - v9: timestamp -5, the last tiered offset (KIP-1005)
//   - v10: timeout (KIP-1075); nothing here waits for remote storage
//   - v11: timestamp -6, the earliest offset that waits for upload (KIP-1023)
func (s *Server) registerListOffsets() {
	s.register(keyListOffsets, 1, 11, s.listOffsets)
}

// Timestamps that the partition does not know.
const (
	tsEarliestLocal = -4
	tsLastTiered    = -5
	tsPendingUpload = -6
)

// namedSince is the version that brought each name among the timestamps.
var namedSince = map[int64]int16{
	partition.Latest: 1, partition.Earliest: 1, partition.MaxTimestamp: 7,
	tsEarliestLocal: 8, tsLastTiered: 9, tsPendingUpload: 11,
}

// historyWait stays well below the request timeouts of clients.
const historyWait = 5 * time.Second

func (s *Server) listOffsets(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ListOffsetsRequest)
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	img := s.o.Controller.Image()
	isolation := req.IsolationLevel
	if req.ReplicaID >= 0 && s.allowedCluster(r, authz.ClusterAction) {
		isolation = partition.ReadEverything
	}
	ctx, cancel := context.WithTimeout(r.ctx, historyWait) // for all partitions together
	defer cancel()
	resp.Topics = make([]kmsg.ListOffsetsResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = req.Topics[i].Topic
		topic := img.Topic(rt.Topic)
		allowed := s.allowedTopic(r, authz.Describe, rt.Topic)
		for j := range req.Topics[i].Partitions {
			in := &req.Topics[i].Partitions[j]
			out := kmsg.NewListOffsetsResponseTopicPartition()
			out.Partition = in.Partition
			var p *partition.Partition
			if topic != nil && allowed {
				p = s.o.Partitions.ByID(topic.ID, in.Partition)
			}
			var err error
			if !allowed {
				err = errTopicDenied
			} else if p == nil {
				err = missing(topic, in.Partition, false)
			} else {
				out.Offset, out.Timestamp, out.LeaderEpoch, err = listOffset(p, in, req.Version, isolation)
				if errors.Is(err, segment.ErrRebuilding) && r.waitReady(ctx, p) == nil {
					out.Offset, out.Timestamp, out.LeaderEpoch, err = listOffset(p, in, req.Version, isolation)
				}
			}
			if err != nil {
				out.Offset, out.Timestamp, out.LeaderEpoch = -1, -1, -1
				out.ErrorCode, _ = errorCode(err)
				if out.ErrorCode == kerr.OffsetNotAvailable.Code && req.Version < 5 {
					out.ErrorCode = kerr.LeaderNotAvailable.Code // the code is of v5
				}
			}
			rt.Partitions = append(rt.Partitions, out)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

// waitReady lets others work while it waits.
func (r *request) waitReady(ctx context.Context, p *partition.Partition) error {
	r.conn.leaveTurn()
	return p.Ready(ctx)
}

func listOffset(p *partition.Partition, in *kmsg.ListOffsetsRequestTopicPartition, version int16, isolation int8) (offset, timestamp int64, epoch int32, err error) {
	ts := in.Timestamp
	if since, named := namedSince[ts]; ts < 0 && (!named || version < since) {
		return -1, -1, -1, fmt.Errorf("%w: timestamp %d in version %d", kerr.UnsupportedVersion, ts, version)
	}
	switch ts {
	case tsEarliestLocal:
		ts = partition.Earliest
	case tsLastTiered, tsPendingUpload:
		// The leader checks still hold; only the answer is empty.
		_, _, _, err = p.ListOffset(partition.Earliest, isolation, in.CurrentLeaderEpoch)
		return -1, -1, -1, err
	}
	return p.ListOffset(ts, isolation, in.CurrentLeaderEpoch)
}
