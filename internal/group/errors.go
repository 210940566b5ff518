package group

import (
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
)

// What a caller of the coordinator branches on. internal/kafka maps each to one
// Kafka error code; nothing in this package knows codes.
var (
	// ErrNotCoordinator: this broker does not lead the group's partition.
	ErrNotCoordinator = coordinator.ErrNotCoordinator
	// ErrLoading: the group's partition is being replayed; ask again.
	ErrLoading = coordinator.ErrLoading
	// ErrNotAvailable: the offsets topic does not exist yet, its log did not take
	// the write, or the group is just being deleted; find the coordinator anew.
	ErrNotAvailable = coordinator.ErrNotAvailable
	// ErrInvalidGroupID: empty where a group is needed, or longer than a key of
	// __consumer_offsets can hold.
	ErrInvalidGroupID = errors.New("invalid group id")
	// ErrInvalidRequest: a request that contradicts itself or passes a bound.
	ErrInvalidRequest = errors.New("invalid group request")
	// ErrUnknownMember: the member id is not, or no longer, of this group.
	ErrUnknownMember = errors.New("unknown member id")
	// ErrMemberIDRequired: join again with the member id given (KIP-394).
	ErrMemberIDRequired = errors.New("member id required")
	// ErrFencedInstance: another member took over the group instance id (KIP-345).
	ErrFencedInstance = errors.New("the group instance id belongs to another member")
	// ErrIllegalGeneration: the request speaks of another generation.
	ErrIllegalGeneration = errors.New("illegal generation")
	// ErrRebalancing: a rebalance is under way; rejoin.
	ErrRebalancing = errors.New("the group is rebalancing")
	// ErrInconsistentProtocol: no protocol that all members know.
	ErrInconsistentProtocol = errors.New("inconsistent group protocol")
	// ErrInvalidSessionTimeout: outside the broker's limits.
	ErrInvalidSessionTimeout = errors.New("invalid session timeout")
	// ErrGroupFull: the group has MaxGroupSize members.
	ErrGroupFull = errors.New("the group has its maximum size")
	// ErrTooManyGroups: the coordinator holds MaxGroups groups.
	ErrTooManyGroups = errors.New("the coordinator has its maximum of groups")
	// ErrMetadataTooLarge: the string beside a committed offset is too long.
	ErrMetadataTooLarge = errors.New("offset metadata too large")
	// ErrTooLarge: one write of the group does not fit a record batch.
	ErrTooLarge = errors.New("group state too large for one record batch")
	// ErrFencedMemberEpoch: the member has moved on; the client must give up its
	// partitions and rejoin (KIP-848).
	ErrFencedMemberEpoch = errors.New("fenced member epoch")
	// ErrStaleMemberEpoch: the client has not heard of its newer member epoch yet.
	ErrStaleMemberEpoch = errors.New("stale member epoch")
	// ErrUnreleasedInstance: another member has the group instance id and has not
	// left.
	ErrUnreleasedInstance = errors.New("the group instance id is still in use")
	// ErrUnsupportedAssignor: the broker does not offer the assignor.
	ErrUnsupportedAssignor = errors.New("unsupported assignor")
	// ErrInvalidRegex: a subscription's pattern cannot be read.
	ErrInvalidRegex = errors.New("invalid regular expression")
	// ErrNeedsMemberEpochs: a member of the consumer protocol asked in a version
	// that has no member epochs.
	ErrNeedsMemberEpochs = errors.New("the request's version has no member epochs")
	// ErrNotFound: no such group.
	ErrNotFound = errors.New("group not found")
	// ErrNonEmpty: the group has members.
	ErrNonEmpty = errors.New("the group is not empty")
	// ErrSubscribed: the group is subscribed to the topic whose offset was to be
	// deleted.
	ErrSubscribed = errors.New("the group is subscribed to the topic")
	// ErrActive: CommitFromMirror met a group with members here (W51); local
	// progress is never overwritten.
	ErrActive = errors.New("the group is active here")
	// ErrUnstable: an open transaction may replace the offset; ask again (KIP-447).
	ErrUnstable = errors.New("an open transaction has committed an offset in the partition")
	// ErrOffsetsFull: the group has MaxOffsetsPerGroup committed offsets.
	ErrOffsetsFull = errors.New("the group has its maximum of committed offsets")
)
