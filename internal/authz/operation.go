package authz

import "github.com/lockstep-kafka/lockstep/internal/metadata"

// The words of ACLs live with the metadata, which stores them; these are the
// names that handlers ask by.
type (
	Operation    = metadata.ACLOperation
	Operations   = metadata.Operations
	ResourceType = metadata.ACLResourceType
)

const (
	All             = metadata.ACLAll
	Read            = metadata.ACLRead
	Write           = metadata.ACLWrite
	Create          = metadata.ACLCreate
	Delete          = metadata.ACLDelete
	Alter           = metadata.ACLAlter
	Describe        = metadata.ACLDescribe
	ClusterAction   = metadata.ACLClusterAction
	DescribeConfigs = metadata.ACLDescribeConfigs
	AlterConfigs    = metadata.ACLAlterConfigs
	IdempotentWrite = metadata.ACLIdempotentWrite
	CreateTokens    = metadata.ACLCreateTokens
	DescribeTokens  = metadata.ACLDescribeTokens
	TwoPhaseCommit  = metadata.ACLTwoPhaseCommit
)

const (
	Topic           = metadata.ACLTopic
	Group           = metadata.ACLGroup
	Cluster         = metadata.ACLCluster
	TransactionalID = metadata.ACLTransactionalID
	DelegationToken = metadata.ACLDelegationToken
	User            = metadata.ACLUser
	ClusterMirror   = metadata.ACLClusterMirror
)

// ClusterName is the name of the resource of type Cluster.
const ClusterName = metadata.ClusterResource
