package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/producer"
)

// DescribeProducers (v0)
//
// Behavior:
//   - Lists the producers that a partition's log knows: the last sequence and
//     time of each, and where its open transaction began, if there is one
//     (KIP-664). `kafka-transactions.sh describe-producers` and `find-hanging` ask
//     this.
//   - Only the leader answers. While the history of a log is being gathered the
//     client is told to ask again.
//   - Needs Read on the topic.
//
// Version notes:
//   - v0: flexible
func (s *Server) registerDescribeProducers() {
	s.register(61, 0, 0, s.describeProducers)
}

func (s *Server) describeProducers(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeProducersRequest)
	img := s.o.Controller.Image()
	var resp kmsg.DescribeProducersResponse
	for _, t := range req.Topics {
		out := kmsg.DescribeProducersResponseTopic{Topic: t.Topic}
		topic := img.Topic(t.Topic)
		allowed := s.allowedTopic(r, authz.Read, t.Topic)
		for _, index := range t.Partitions {
			op := kmsg.DescribeProducersResponseTopicPartition{Partition: index}
			var err error
			if !allowed {
				err = errTopicDenied
			} else if p := s.o.Partitions.Get(t.Topic, index); p == nil {
				err = missing(topic, index, false)
			} else {
				var known []producer.Producer
				known, err = p.Producers()
				for _, k := range known {
					op.ActiveProducers = append(op.ActiveProducers, activeProducer(k))
				}
			}
			op.ErrorCode, op.ErrorMessage = errorCode(err)
			out.Partitions = append(out.Partitions, op)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return &resp, nil
}

func activeProducer(k producer.Producer) kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	return kmsg.DescribeProducersResponseTopicPartitionActiveProducer{
		ProducerID: k.ProducerID, ProducerEpoch: int32(k.Epoch),
		LastSequence: k.LastSequence, LastTimestamp: k.LastTimestamp,
		CoordinatorEpoch: k.CoordinatorEpoch, CurrentTxnStartOffset: k.TxnFirst,
	}
}
