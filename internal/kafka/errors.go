package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/internal/quota"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/txn"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Codes of KIP-1279, which kerr does not have (spec, section 6). 140 is unused.
const (
	codeReadOnlyTopic         = 134
	codeInvalidMirrorName     = 135
	codeMirrorExists          = 136
	codeUnknownMirror         = 137
	codeTopicInOtherMirror    = 138
	codeTopicNotInMirror      = 139
	codeMirrorTopicNotPaused  = 141
	codeMirrorTopicBeingEnded = 142
	codeMirrorNotEmpty        = 143
	codeMirrorDenied          = 144
	codeInvalidMirrorStates   = 145
	codeMirrorTopicNotStopped = 146
)

// What this package refuses by itself.
var (
	errUnknownPartition = errors.New("no such topic or partition")
	errUnknownTopicID   = errors.New("no such topic id")
	errInternalTopic    = errors.New("clients may not write to an internal topic")
	errTxnUnsettled     = errors.New("the transaction's coordinator cannot tell yet whether the partition is in it")
	errConnClosing      = errors.New("connection is closing")

	errTopicDenied   = errors.New("not authorized for this topic")
	errGroupDenied   = errors.New("not authorized for this group")
	errClusterDenied = errors.New("not authorized for this cluster")
	errTxnDenied     = errors.New("not authorized for this transactional id")
	errMirrorDenied  = errors.New("not authorized for this cluster mirror")
	errNoAuthorizer  = errors.New("no authorizer is configured (authorizer.class.name)")
	errMechanism     = errors.New("no such SASL mechanism")
	errDuplicate     = errors.New("named twice")
)

// errorTable is the whole translation from our errors to Kafka's codes. The
// first row that errors.Is finds wins, so a narrower error stands above the one
// that it wraps.
var errorTable = []struct {
	err  error
	code int16
}{
	{errUnknownPartition, kerr.UnknownTopicOrPartition.Code},
	{errUnknownTopicID, kerr.UnknownTopicID.Code},
	// Asked again by every producer, without a look for another leader.
	{errTxnUnsettled, kerr.NotEnoughReplicas.Code},
	{errInternalTopic, kerr.InvalidTopicException.Code},

	{errMechanism, kerr.UnsupportedSaslMechanism.Code},
	{errDuplicate, kerr.DuplicateResource.Code},

	{errTopicDenied, kerr.TopicAuthorizationFailed.Code},
	{errGroupDenied, kerr.GroupAuthorizationFailed.Code},
	{errClusterDenied, kerr.ClusterAuthorizationFailed.Code},
	{errTxnDenied, kerr.TransactionalIDAuthorizationFailed.Code},
	{errMirrorDenied, codeMirrorDenied},
	{errNoAuthorizer, kerr.SecurityDisabled.Code},

	{partition.ErrUnknown, kerr.UnknownTopicOrPartition.Code},
	{partition.ErrNotLeader, kerr.NotLeaderForPartition.Code},
	{partition.ErrClosed, kerr.NotLeaderForPartition.Code},
	{partition.ErrFencedEpoch, kerr.FencedLeaderEpoch.Code},
	{partition.ErrUnknownEpoch, kerr.UnknownLeaderEpoch.Code},
	{partition.ErrReadOnly, codeReadOnlyTopic},
	{partition.ErrUnverified, kerr.InvalidTxnState.Code},
	{partition.ErrMirrored, codeInvalidMirrorStates},
	{partition.ErrPolicy, kerr.PolicyViolation.Code},
	{partition.ErrOutOfRange, kerr.OffsetOutOfRange.Code},
	{partition.ErrOffsetNotAvailable, kerr.OffsetNotAvailable.Code},
	{partition.ErrStorage, kerr.KafkaStorageError.Code},
	{partition.ErrDirOffline, kerr.KafkaStorageError.Code},
	{partition.ErrTooLarge, kerr.MessageTooLarge.Code},
	{partition.ErrTimestamp, kerr.InvalidTimestamp.Code},
	{partition.ErrNotEnoughReplicas, kerr.NotEnoughReplicas.Code},
	{partition.ErrNotEnoughReplicasAfter, kerr.NotEnoughReplicasAfterAppend.Code},
	{partition.ErrTimedOut, kerr.RequestTimedOut.Code},

	{pipeline.ErrInvalidRecord, kerr.InvalidRecord.Code},
	{pipeline.ErrTooLarge, kerr.MessageTooLarge.Code},
	{pipeline.ErrUnknownCodec, kerr.UnsupportedCompressionType.Code},

	{producer.ErrOutOfOrderSequence, kerr.OutOfOrderSequenceNumber.Code},
	{producer.ErrFencedEpoch, kerr.InvalidProducerEpoch.Code},
	{producer.ErrCoordinatorFenced, kerr.TransactionCoordinatorFenced.Code},
	{producer.ErrInvalidTxnState, kerr.InvalidTxnState.Code},
	{producer.ErrInvalidSequence, kerr.InvalidRecord.Code},

	{segment.ErrOutOfRange, kerr.OffsetOutOfRange.Code},
	// Asked again by every producer, which then finds the same leader.
	{segment.ErrRebuilding, kerr.NotLeaderForPartition.Code},
	{segment.ErrClosed, kerr.NotLeaderForPartition.Code},
	{segment.ErrFull, kerr.KafkaStorageError.Code},
	{segment.ErrFailed, kerr.KafkaStorageError.Code},
	{segment.ErrCorrupt, kerr.KafkaStorageError.Code},
	{record.ErrShort, kerr.CorruptMessage.Code},

	{controller.ErrUnknownTopic, kerr.UnknownTopicOrPartition.Code},
	{controller.ErrUnknownTopicID, kerr.UnknownTopicID.Code},
	{controller.ErrStoreFull, kerr.KafkaStorageError.Code}, // clients try again
	{controller.ErrInvalidTopic, kerr.InvalidTopicException.Code},
	{controller.ErrTopicExists, kerr.TopicAlreadyExists.Code},
	{controller.ErrInvalidPartitions, kerr.InvalidPartitions.Code},
	{controller.ErrInvalidReplicationFactor, kerr.InvalidReplicationFactor.Code},
	{controller.ErrInvalidReplicaAssignment, kerr.InvalidReplicaAssignment.Code},
	{metadata.ErrInvalidConfig, kerr.InvalidConfig.Code}, // the controller's too
	{metadata.ErrInvalidQuota, kerr.InvalidRequest.Code},
	{controller.ErrTooManyQuotas, kerr.PolicyViolation.Code},
	{controller.ErrTooManyGroupConfigs, kerr.PolicyViolation.Code},
	{quota.ErrExceeded, kerr.ThrottlingQuotaExceeded.Code},
	{metadata.ErrReadOnlyConfig, kerr.InvalidRequest.Code}, // as Kafka
	{controller.ErrNotController, kerr.NotController.Code},
	{controller.ErrClosed, kerr.NotController.Code},
	{controller.ErrInvalidRequest, kerr.InvalidRequest.Code},
	{controller.ErrTooManyACLs, kerr.PolicyViolation.Code},
	{controller.ErrFencedLeaderEpoch, kerr.FencedLeaderEpoch.Code},
	{controller.ErrUnknownScram, kerr.ResourceNotFound.Code},
	{controller.ErrUnacceptableCredential, kerr.UnacceptableCredential.Code},
	{controller.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch.Code},
	{controller.ErrPreferredLeaderNotAvailable, kerr.PreferredLeaderNotAvailable.Code},
	{controller.ErrEligibleLeadersNotAvailable, kerr.EligibleLeadersNotAvailable.Code},
	{controller.ErrElectionNotNeeded, kerr.ElectionNotNeeded.Code},
	{controller.ErrNoReassignment, kerr.NoReassignmentInProgress.Code},
	{controller.ErrInvalidUpdateVersion, kerr.InvalidUpdateVersion.Code},
	{controller.ErrDuplicateBroker, kerr.DuplicateBrokerRegistration.Code},
	{controller.ErrIneligibleReplica, kerr.IneligibleReplica.Code},
	{controller.ErrUnknownBroker, kerr.BrokerIDNotRegistered.Code},
	{controller.ErrInconsistentTopicID, kerr.InconsistentTopicID.Code},
	{controller.ErrFencedStateEpoch, kerr.FencedStateEpoch.Code},
	{controller.ErrReadOnlyTopic, codeReadOnlyTopic},
	{controller.ErrInvalidMirrorName, codeInvalidMirrorName},
	{controller.ErrMirrorExists, codeMirrorExists},
	{controller.ErrUnknownMirror, codeUnknownMirror},
	{controller.ErrTopicInOtherMirror, codeTopicInOtherMirror},
	{controller.ErrTopicNotInMirror, codeTopicNotInMirror},
	{controller.ErrNotPaused, codeMirrorTopicNotPaused},
	{controller.ErrBeingStopped, codeMirrorTopicBeingEnded},
	{controller.ErrMirrorNotEmpty, codeMirrorNotEmpty},
	{controller.ErrMirrorStates, codeInvalidMirrorStates},
	{controller.ErrNotStopped, codeMirrorTopicNotStopped},

	{group.ErrNotCoordinator, kerr.NotCoordinator.Code},
	{group.ErrLoading, kerr.CoordinatorLoadInProgress.Code},
	{group.ErrNotAvailable, kerr.CoordinatorNotAvailable.Code},
	{group.ErrInvalidGroupID, kerr.InvalidGroupID.Code},
	{group.ErrInvalidRequest, kerr.InvalidRequest.Code},
	{group.ErrUnknownMember, kerr.UnknownMemberID.Code},
	{group.ErrMemberIDRequired, kerr.MemberIDRequired.Code},
	{group.ErrFencedInstance, kerr.FencedInstanceID.Code},
	{group.ErrIllegalGeneration, kerr.IllegalGeneration.Code},
	{group.ErrRebalancing, kerr.RebalanceInProgress.Code},
	{group.ErrInconsistentProtocol, kerr.InconsistentGroupProtocol.Code},
	{group.ErrInvalidSessionTimeout, kerr.InvalidSessionTimeout.Code},
	{group.ErrGroupFull, kerr.GroupMaxSizeReached.Code},
	{group.ErrTooManyGroups, kerr.PolicyViolation.Code},
	{group.ErrMetadataTooLarge, kerr.OffsetMetadataTooLarge.Code},
	{group.ErrTooLarge, kerr.InvalidCommitOffsetSize.Code},
	{group.ErrFencedMemberEpoch, kerr.FencedMemberEpoch.Code},
	{group.ErrStaleMemberEpoch, kerr.StaleMemberEpoch.Code},
	{group.ErrUnreleasedInstance, kerr.UnreleasedInstanceID.Code},
	{group.ErrUnsupportedAssignor, kerr.UnsupportedAssignor.Code},
	{group.ErrInvalidRegex, kerr.InvalidRegularExpression.Code},
	{group.ErrNeedsMemberEpochs, kerr.UnsupportedVersion.Code},
	{group.ErrNotFound, kerr.GroupIDNotFound.Code},
	{group.ErrNonEmpty, kerr.NonEmptyGroup.Code},
	{group.ErrSubscribed, kerr.GroupSubscribedToTopic.Code},
	{group.ErrActive, kerr.NonEmptyGroup.Code},
	{group.ErrUnstable, kerr.UnstableOffsetCommit.Code},
	{group.ErrOffsetsFull, kerr.PolicyViolation.Code},

	{txn.ErrNotCoordinator, kerr.NotCoordinator.Code},
	{txn.ErrLoading, kerr.CoordinatorLoadInProgress.Code},
	{txn.ErrNotAvailable, kerr.CoordinatorNotAvailable.Code},
	{txn.ErrInvalidRequest, kerr.InvalidRequest.Code},
	{txn.ErrInvalidTimeout, kerr.InvalidTransactionTimeout.Code},
	{txn.ErrUnknownProducer, kerr.InvalidProducerIDMapping.Code},
	{txn.ErrFenced, kerr.ProducerFenced.Code}, // INVALID_PRODUCER_EPOCH for older versions, see fencedCode
	{txn.ErrConcurrent, kerr.ConcurrentTransactions.Code},
	{txn.ErrInvalidState, kerr.InvalidTxnState.Code},
	{txn.ErrNotInTransaction, kerr.TransactionAbortable.Code},
	{txn.ErrNotFound, kerr.TransactionalIDNotFound.Code},
	{txn.ErrTooManyIDs, kerr.PolicyViolation.Code},
	{txn.ErrTooLarge, kerr.UnknownServerError.Code},
	{txn.ErrInvalidPattern, kerr.InvalidRegularExpression.Code},

	{context.DeadlineExceeded, kerr.RequestTimedOut.Code},
	{context.Canceled, kerr.RequestTimedOut.Code},
}

// errorCode turns an error of any package below into Kafka's code and a
// message for the client. It is the only place that chooses codes. An error
// that the table does not know is a server error.
func errorCode(err error) (code int16, message *string) {
	if err == nil {
		return 0, nil
	}
	text := err.Error()
	for i := range errorTable {
		if errors.Is(err, errorTable[i].err) {
			return errorTable[i].code, &text
		}
	}
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Code, &text
	}
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) {
		return kerr.CorruptMessage.Code, &text
	}
	return kerr.UnknownServerError.Code, &text
}

// fencedCode is errorCode for requests of transactions, whose older versions do
// not know PRODUCER_FENCED: clients of those take INVALID_PRODUCER_EPOCH for it
// (KIP-588). since is the first version that knows it.
func fencedCode(err error, version, since int16) int16 {
	code, _ := errorCode(err)
	if code == kerr.ProducerFenced.Code && version < since {
		return kerr.InvalidProducerEpoch.Code
	}
	return code
}
