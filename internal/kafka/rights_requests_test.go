package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// A rightsRequest is one row of testdata/rights: a request that goes as far as
// its rights allow and changes nothing that another row needs.
type rightsRequest struct {
	name    string
	request func() kmsg.Request
}

// requests is one or more for every key. Names are of things that exist, unless
// the request would change them.
func (w *secured) requests() []rightsRequest {
	topic, id, group, mirrorName := w.topic.Name, w.topic.ID, w.prefix, w.prefix
	gone := w.prefix + "-gone" // a name under the ACLs that nothing has
	at := func(version int16, req kmsg.Request) kmsg.Request {
		req.SetVersion(version)
		return req
	}
	one := []int32{0}
	requests := []rightsRequest{
		{"produce", func() kmsg.Request { return produceTo(w.topic, 0, 1, batchOf("a")) }},
		{"produce-by-id", func() kmsg.Request { return at(13, produceTo(w.topic, 0, 1, batchOf("a"))) }},
		{"produce-in-transaction", func() kmsg.Request {
			req := produceTo(w.topic, 0, 1, txnBatchOf(1<<40, 0, "a"))
			req.TransactionID = &gone
			return req
		}},
		{"produce-in-transaction-without-id", func() kmsg.Request { return produceTo(w.topic, 0, 1, txnBatchOf(1<<40, 0, "a")) }},
		{"fetch", func() kmsg.Request { return at(12, fetchFrom(w.topic, 0, 0)) }},
		{"fetch-by-id", func() kmsg.Request { return fetchFrom(w.topic, 0, 0) }},
		{"fetch-as-follower", func() kmsg.Request {
			req := fetchFrom(w.topic, 0, 0)
			req.ReplicaID, req.ReplicaState.ID = -1, 1
			return at(17, req)
		}},
		{"fetch-to-repair", func() kmsg.Request {
			req := fetchFrom(w.topic, 0, 0)
			req.ReplicaID, req.ReplicaState.ID = -1, repairReplica
			return at(17, req)
		}},
		{"list-offsets", func() kmsg.Request {
			return at(7, &kmsg.ListOffsetsRequest{ReplicaID: -1, Topics: []kmsg.ListOffsetsRequestTopic{{Topic: topic,
				Partitions: []kmsg.ListOffsetsRequestTopicPartition{{CurrentLeaderEpoch: -1, Timestamp: -1}}}}})
		}},
		{"metadata", func() kmsg.Request {
			return at(9, &kmsg.MetadataRequest{Topics: []kmsg.MetadataRequestTopic{{Topic: &topic}}})
		}},
		{"metadata-by-id", func() kmsg.Request {
			return at(12, &kmsg.MetadataRequest{Topics: []kmsg.MetadataRequestTopic{{TopicID: id}}})
		}},
		{"metadata-of-missing", func() kmsg.Request {
			return at(9, &kmsg.MetadataRequest{Topics: []kmsg.MetadataRequestTopic{{Topic: &gone}}})
		}},
		{"offset-commit", func() kmsg.Request {
			return at(8, &kmsg.OffsetCommitRequest{Group: group, Generation: -1, Topics: []kmsg.OffsetCommitRequestTopic{{Topic: topic,
				Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}})
		}},
		{"offset-commit-of-a-mirror", func() kmsg.Request {
			req := &kmsg.OffsetCommitRequest{Group: group, Generation: -1, Topics: []kmsg.OffsetCommitRequestTopic{{Topic: topic,
				Partitions: []kmsg.OffsetCommitRequestTopicPartition{{}}}}}
			req.UnknownTags.Set(tagFromMirror, nil)
			return at(8, req)
		}},
		{"offset-fetch", func() kmsg.Request {
			return at(8, &kmsg.OffsetFetchRequest{Groups: []kmsg.OffsetFetchRequestGroup{{Group: group, MemberEpoch: -1,
				Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic, Partitions: one}}}}})
		}},
		{"find-coordinator", func() kmsg.Request { return at(3, &kmsg.FindCoordinatorRequest{CoordinatorKey: group}) }},
		{"join-group", func() kmsg.Request {
			return at(5, &kmsg.JoinGroupRequest{Group: gone, SessionTimeoutMillis: 1}) // refused before anybody waits
		}},
		{"heartbeat", func() kmsg.Request { return at(3, &kmsg.HeartbeatRequest{Group: group}) }},
		{"leave-group", func() kmsg.Request {
			return at(3, &kmsg.LeaveGroupRequest{Group: group, Members: []kmsg.LeaveGroupRequestMember{{MemberID: "m"}}})
		}},
		{"sync-group", func() kmsg.Request { return at(3, &kmsg.SyncGroupRequest{Group: group, MemberID: "m"}) }},
		{"describe-groups", func() kmsg.Request { return at(5, &kmsg.DescribeGroupsRequest{Groups: []string{group}}) }},
		{"list-groups", func() kmsg.Request { return at(4, &kmsg.ListGroupsRequest{}) }},
		{"list-groups-of-a-mirror", func() kmsg.Request {
			req := &kmsg.ListGroupsRequest{}
			req.UnknownTags.Set(tagGroupsAbove, append(make([]byte, 12), topic...))
			return at(4, req)
		}},
		{"sasl-handshake", func() kmsg.Request { return at(1, &kmsg.SASLHandshakeRequest{Mechanism: "PLAIN"}) }},
		{"sasl-authenticate", func() kmsg.Request { return at(2, &kmsg.SASLAuthenticateRequest{}) }},
		{"api-versions", func() kmsg.Request {
			return at(3, &kmsg.ApiVersionsRequest{ClientSoftwareName: "test", ClientSoftwareVersion: "1"})
		}},
		{"create-topics", func() kmsg.Request {
			return at(7, &kmsg.CreateTopicsRequest{ValidateOnly: true, Topics: []kmsg.CreateTopicsRequestTopic{{Topic: gone, NumPartitions: 1, ReplicationFactor: 1}}})
		}},
		{"delete-topics", func() kmsg.Request {
			return at(4, &kmsg.DeleteTopicsRequest{TopicNames: []string{w.doomed().Name}})
		}},
		{"delete-topics-by-id", func() kmsg.Request {
			return at(6, &kmsg.DeleteTopicsRequest{Topics: []kmsg.DeleteTopicsRequestTopic{{TopicID: w.doomed().ID}}})
		}},
		{"delete-topics-that-are-missing", func() kmsg.Request { return at(4, &kmsg.DeleteTopicsRequest{TopicNames: []string{gone}}) }},
		{"delete-records", func() kmsg.Request {
			return at(2, &kmsg.DeleteRecordsRequest{Topics: []kmsg.DeleteRecordsRequestTopic{{Topic: topic,
				Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: 0}}}}})
		}},
		{"init-producer-id", func() kmsg.Request { return at(3, &kmsg.InitProducerIDRequest{ProducerID: -1, ProducerEpoch: -1}) }},
		{"find-coordinator-of-transactions", func() kmsg.Request {
			return at(3, &kmsg.FindCoordinatorRequest{CoordinatorType: 1, CoordinatorKey: gone})
		}},
		{"init-producer-id-of-transactions", func() kmsg.Request {
			return at(3, &kmsg.InitProducerIDRequest{TransactionalID: &gone, ProducerID: -1, ProducerEpoch: -1}) // no timeout that is taken
		}},
		{"add-partitions-to-txn", func() kmsg.Request {
			return at(3, &kmsg.AddPartitionsToTxnRequest{TransactionalID: gone, Topics: []kmsg.AddPartitionsToTxnRequestTopic{{Topic: topic, Partitions: one}}})
		}},
		{"add-partitions-to-txn-by-brokers", func() kmsg.Request {
			return at(4, &kmsg.AddPartitionsToTxnRequest{Transactions: []kmsg.AddPartitionsToTxnRequestTransaction{{TransactionalID: gone,
				Topics: []kmsg.AddPartitionsToTxnRequestTransactionTopic{{Topic: topic, Partitions: one}}}}})
		}},
		{"add-offsets-to-txn", func() kmsg.Request { return at(3, &kmsg.AddOffsetsToTxnRequest{TransactionalID: gone, Group: group}) }},
		{"txn-offset-commit", func() kmsg.Request {
			return at(3, &kmsg.TxnOffsetCommitRequest{TransactionalID: gone, Group: group, ProducerID: 1 << 40, Generation: -1,
				Topics: []kmsg.TxnOffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{}}}}})
		}},
		{"end-txn", func() kmsg.Request { return at(3, &kmsg.EndTxnRequest{TransactionalID: gone}) }},
		{"describe-transactions", func() kmsg.Request {
			return at(0, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{gone}})
		}},
		{"describe-transactions-with-topics", func() kmsg.Request {
			return at(0, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{w.prefix}})
		}},
		{"list-transactions", func() kmsg.Request { return at(1, &kmsg.ListTransactionsRequest{DurationFilterMillis: -1}) }},
		{"offset-for-leader-epoch", func() kmsg.Request {
			return at(3, &kmsg.OffsetForLeaderEpochRequest{ReplicaID: -1, Topics: []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: topic,
				Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: -1}}}}})
		}},
		{"write-txn-markers", func() kmsg.Request {
			return at(1, &kmsg.WriteTxnMarkersRequest{Markers: []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: 1 << 40,
				Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: gone, Partitions: one}}}}})
		}},
		{"describe-acls", func() kmsg.Request {
			return at(3, &kmsg.DescribeACLsRequest{ResourceType: 1, ResourceName: &gone, ResourcePatternType: 3, Operation: 1, PermissionType: 1})
		}},
		{"create-acls", func() kmsg.Request {
			return at(3, &kmsg.CreateACLsRequest{Creations: []kmsg.CreateACLsRequestCreation{{}}}) // never a valid one
		}},
		{"delete-acls", func() kmsg.Request {
			return at(3, &kmsg.DeleteACLsRequest{Filters: []kmsg.DeleteACLsRequestFilter{{ResourceType: 1, ResourceName: &gone, ResourcePatternType: 3, Operation: 1, PermissionType: 1}}})
		}},
		{"elect-leaders", func() kmsg.Request {
			return at(2, &kmsg.ElectLeadersRequest{Topics: []kmsg.ElectLeadersRequestTopic{{Topic: topic, Partitions: one}}})
		}},
		{"alter-partition-reassignments", func() kmsg.Request {
			return at(1, &kmsg.AlterPartitionAssignmentsRequest{Topics: []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: topic,
				Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{}}}}})
		}},
		{"unregister-broker", func() kmsg.Request { return at(0, &kmsg.UnregisterBrokerRequest{BrokerID: 99}) }},
		{"list-partition-reassignments", func() kmsg.Request { return at(0, &kmsg.ListPartitionReassignmentsRequest{}) }},
		{"describe-client-quotas", func() kmsg.Request { return at(1, &kmsg.DescribeClientQuotasRequest{}) }},
		{"alter-client-quotas", func() kmsg.Request {
			return at(1, &kmsg.AlterClientQuotasRequest{ValidateOnly: true, Entries: []kmsg.AlterClientQuotasRequestEntry{{
				Entity: []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: &gone}}}}})
		}},
		{"update-features", func() kmsg.Request { return at(2, &kmsg.UpdateFeaturesRequest{ValidateOnly: true}) }},
		{"list-config-resources", func() kmsg.Request { return at(1, &kmsg.ListConfigResourcesRequest{}) }},
		{"describe-topic-partitions", func() kmsg.Request {
			return at(0, &kmsg.DescribeTopicPartitionsRequest{ResponsePartitionLimit: 10,
				Topics: []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: topic}}})
		}},
		{"describe-log-dirs", func() kmsg.Request { return at(4, &kmsg.DescribeLogDirsRequest{}) }},
		{"create-partitions", func() kmsg.Request {
			return at(3, &kmsg.CreatePartitionsRequest{ValidateOnly: true, Topics: []kmsg.CreatePartitionsRequestTopic{{Topic: topic, Count: 5}}})
		}},
		{"delete-groups", func() kmsg.Request { return at(2, &kmsg.DeleteGroupsRequest{Groups: []string{gone}}) }},
		{"offset-delete", func() kmsg.Request {
			return at(0, &kmsg.OffsetDeleteRequest{Group: group, Topics: []kmsg.OffsetDeleteRequestTopic{{Topic: topic,
				Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 99}}}}})
		}},
		{"describe-user-scram-credentials", func() kmsg.Request { return at(0, &kmsg.DescribeUserSCRAMCredentialsRequest{}) }},
		{"alter-user-scram-credentials", func() kmsg.Request {
			return at(0, &kmsg.AlterUserSCRAMCredentialsRequest{Deletions: []kmsg.AlterUserSCRAMCredentialsRequestDeletion{{Name: gone, Mechanism: 1}}})
		}},
		{"describe-quorum", func() kmsg.Request {
			return at(2, &kmsg.DescribeQuorumRequest{Topics: []kmsg.DescribeQuorumRequestTopic{{Topic: metadataTopic, Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}})
		}},
		{"describe-cluster", func() kmsg.Request { return at(1, &kmsg.DescribeClusterRequest{EndpointType: 1}) }},
		{"describe-producers", func() kmsg.Request {
			return at(0, &kmsg.DescribeProducersRequest{Topics: []kmsg.DescribeProducersRequestTopic{{Topic: topic, Partitions: one}}})
		}},
		{"consumer-group-heartbeat", func() kmsg.Request {
			return at(1, &kmsg.ConsumerGroupHeartbeatRequest{Group: group, MemberEpoch: -7, SubscribedTopicNames: []string{topic}}) // never a valid one
		}},
		{"consumer-group-describe", func() kmsg.Request {
			return at(1, &kmsg.ConsumerGroupDescribeRequest{Groups: []string{group}})
		}},
		{"consumer-group-describe-of-members", func() kmsg.Request {
			return at(1, &kmsg.ConsumerGroupDescribeRequest{Groups: []string{w.consumerGroup()}})
		}},
		{"create-cluster-mirror", func() kmsg.Request {
			return &wire.CreateClusterMirrorRequest{MirrorName: w.prefix + "!"} // no name of a mirror
		}},
		{"start-mirror-topics", func() kmsg.Request {
			return &wire.StartMirrorTopicsRequest{MirrorName: mirrorName, Topics: []wire.StartMirrorTopic{{TopicName: topic}}}
		}},
		{"remove-topics-from-mirror", func() kmsg.Request {
			return &wire.RemoveTopicsFromMirrorRequest{MirrorName: mirrorName, Topics: []string{topic}}
		}},
		{"read-mirror-offsets", func() kmsg.Request { return &wire.ReadMirrorOffsetsRequest{MirrorName: mirrorName} }},
		{"last-mirrored-epochs", func() kmsg.Request { return &wire.LastMirroredEpochsRequest{MirrorName: mirrorName} }},
		{"list-cluster-mirrors", func() kmsg.Request { return &wire.ListClusterMirrorsRequest{} }},
		{"describe-cluster-mirrors", func() kmsg.Request {
			return &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{mirrorName}}
		}},
		{"plan-start-of-mirror-topics", func() kmsg.Request {
			return &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{mirrorName}, Plan: &wire.StartPlanRequest{IncludePatterns: []string{topic}}}
		}},
		{"pause-mirror-topics", func() kmsg.Request {
			return &wire.PauseMirrorTopicsRequest{MirrorName: mirrorName, Topics: []string{topic}}
		}},
		{"resume-mirror-topics", func() kmsg.Request {
			return &wire.ResumeMirrorTopicsRequest{MirrorName: mirrorName, Topics: []string{topic}}
		}},
		{"delete-cluster-mirror", func() kmsg.Request { return &wire.DeleteClusterMirrorRequest{MirrorName: gone} }},
		{"recover-mirror-topics", func() kmsg.Request {
			return &wire.RecoverMirrorTopicsRequest{MirrorName: mirrorName, Topics: []string{topic}}
		}},
	}
	for _, c := range []struct {
		name string
		kind int8
		of   string
	}{{"topic", 2, topic}, {"broker", 4, "1"}, {"logger", 8, "1"}, {"group", 32, group}, {"mirror", 64, mirrorName}} {
		requests = append(requests,
			rightsRequest{"describe-configs-of-" + c.name, func() kmsg.Request {
				return at(4, &kmsg.DescribeConfigsRequest{Resources: []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceType(c.kind), ResourceName: c.of}}})
			}},
			rightsRequest{"alter-configs-of-" + c.name, func() kmsg.Request {
				return at(2, &kmsg.AlterConfigsRequest{ValidateOnly: true, Resources: []kmsg.AlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceType(c.kind), ResourceName: c.of}}})
			}},
			rightsRequest{"incremental-alter-configs-of-" + c.name, func() kmsg.Request {
				return at(1, &kmsg.IncrementalAlterConfigsRequest{ValidateOnly: true, Resources: []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceType(c.kind), ResourceName: c.of}}})
			}})
	}
	return requests
}
