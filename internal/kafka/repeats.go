package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// dropRepeats keeps the first of equal subjects in requests whose answers say
// much about each: a name of ten bytes, asked for a hundred thousand times in a
// request of 1 MiB, would be answered with all its partitions as often. No
// client needs an answer twice, and Apache Kafka looks at sets here too.
func dropRepeats(body kmsg.Request) {
	switch req := body.(type) {
	case *kmsg.MetadataRequest:
		type subject struct {
			name string
			id   [16]byte
		}
		req.Topics = distinct(req.Topics, func(t *kmsg.MetadataRequestTopic) subject { return subject{orEmpty(t.Topic), t.TopicID} })
	case *kmsg.OffsetFetchRequest:
		req.Groups = distinct(req.Groups, func(g *kmsg.OffsetFetchRequestGroup) string { return g.Group })
	case *kmsg.DescribeGroupsRequest:
		req.Groups = distinct(req.Groups, func(g *string) string { return *g })
	case *kmsg.ConsumerGroupDescribeRequest:
		req.Groups = distinct(req.Groups, func(g *string) string { return *g })
	case *kmsg.DescribeConfigsRequest:
		type subject struct {
			kind kmsg.ConfigResourceType
			name string
		}
		req.Resources = distinct(req.Resources, func(r *kmsg.DescribeConfigsRequestResource) subject {
			return subject{r.ResourceType, r.ResourceName}
		})
	case *kmsg.DescribeTransactionsRequest:
		req.TransactionalIDs = distinct(req.TransactionalIDs, func(id *string) string { return *id })
	case *kmsg.DescribeProducersRequest:
		for i := range req.Topics {
			req.Topics[i].Partitions = distinct(req.Topics[i].Partitions, func(p *int32) int32 { return *p })
		}
		req.Topics = distinct(req.Topics, func(t *kmsg.DescribeProducersRequestTopic) string { return t.Topic })
	case *kmsg.DescribeTopicPartitionsRequest:
		req.Topics = distinct(req.Topics, func(t *kmsg.DescribeTopicPartitionsRequestTopic) string { return t.Topic })
	}
}

// distinct keeps nil apart from empty: to many requests it means everything.
func distinct[T any, S comparable](list []T, subject func(*T) S) []T {
	if len(list) < 2 {
		return list
	}
	seen := make(map[S]struct{}, min(len(list), 1024)) // most are repeats where there are many
	kept := list[:0]
	for i := range list {
		s := subject(&list[i])
		if _, again := seen[s]; again {
			continue
		}
		seen[s] = struct{}{}
		kept = append(kept, list[i])
	}
	return kept
}
