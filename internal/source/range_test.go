package source

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// A damaged replica asks its leader for 10 to 20: as one that repairs, in its leader
// epoch, and takes only what lies between. What the leader has deleted is not missed;
// what it does not have yet, or never had, is an error and no emptiness.
func TestReplicaRange(t *testing.T) {
	hole := func(from, to int64) []byte { return record.Hole(from, to, 4) }
	key := sdk.PartitionKey{Topic: "orders", TopicID: [16]byte{1}, Partition: 2}
	for _, tt := range []struct {
		name    string
		start   int64 // of the leader's log
		code    int16
		whole   int16 // code of the answer
		batches []byte
		other   bool // the answer is about another partition
		next    int64
		bytes   int
		err     error
	}{
		{name: "all of it", batches: hole(10, 20), next: 20, bytes: len(hole(10, 20))},
		{name: "more than all", batches: append(hole(10, 20), hole(20, 30)...), next: 20, bytes: len(hole(10, 20))},
		{name: "a part", batches: hole(10, 15), next: 15, bytes: len(hole(10, 15))},
		{name: "compacted away", batches: hole(25, 30), next: 20},
		{name: "deleted up to 14", start: 14, batches: hole(14, 20), next: 14},
		{name: "deleted up to 14, and told so by an error", start: 14, code: kerr.OffsetOutOfRange.Code, next: 14},
		{name: "deleted and more", start: 40, code: kerr.OffsetOutOfRange.Code, next: 20},
		{name: "above its end", code: kerr.OffsetOutOfRange.Code, err: ErrGone},
		{name: "nothing", err: ErrGone},
		{name: "another leads", code: kerr.NotLeaderForPartition.Code, err: kerr.NotLeaderForPartition},
		{name: "its log is damaged too", start: 14, code: kerr.KafkaStorageError.Code, err: kerr.KafkaStorageError},
		{name: "refused", whole: kerr.ClusterAuthorizationFailed.Code, err: kerr.ClusterAuthorizationFailed},
		{name: "of another partition", other: true, err: errMissing},
	} {
		ask := func(_ context.Context, r kmsg.Request) (kmsg.Response, error) {
			req := r.(*kmsg.FetchRequest)
			p := req.Topics[0].Partitions[0]
			if req.ReplicaState.ID != repairReplica || req.ReplicaID != repairReplica || p.CurrentLeaderEpoch != 7 || p.FetchOffset != 10 || p.Partition != 2 {
				t.Errorf("%s: asked %+v", tt.name, req)
			}
			resp := kmsg.NewPtrFetchResponse()
			resp.ErrorCode = tt.whole
			part := kmsg.NewFetchResponseTopicPartition()
			part.Partition, part.ErrorCode, part.LogStartOffset, part.RecordBatches = 2, tt.code, tt.start, tt.batches
			if tt.other {
				part.Partition = 3
			}
			top := kmsg.NewFetchResponseTopic()
			top.TopicID, top.Partitions = key.TopicID, []kmsg.FetchResponseTopicPartition{part}
			resp.Topics = []kmsg.FetchResponseTopic{top}
			return resp, nil
		}
		batches, next, err := ReplicaRange(t.Context(), ask, key, 7, 10, 20)
		if next != tt.next || len(batches) != tt.bytes || !errors.Is(err, tt.err) {
			t.Errorf("%s: %d bytes, next %d, %v; want %d bytes, next %d, %v", tt.name, len(batches), next, err, tt.bytes, tt.next, tt.err)
		}
	}
}
