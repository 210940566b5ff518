package metadata

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ACL is one access control entry with the resources that it is about: Kafka's
// "binding". It has no identity but its content, so that it can be a map's key.
type ACL struct {
	ResourceType ACLResourceType
	Pattern      ACLPatternType // PatternLiteral or PatternPrefixed
	// ResourceName is a name, a prefix, or with a literal pattern * for all.
	ResourceName string
	// Principal is Type:Name; the name * stands for every name of the type.
	Principal  string
	Host       string // an address, or * for all
	Operation  ACLOperation
	Permission ACLPermission
}

// ACLSource is a mirror of this cluster that has copied an ACL here, and that may take
// it away again when its source has (DEC-09).
type ACLSource struct {
	Mirror string `json:"mirror"`
	// Clusters are the ids of the clusters that the ACL comes from, in order: the
	// mirror's source, and those from whose mirrors that has it.
	Clusters []string `json:"clusters"`
}

// Equal tells whether two are the same.
func (s ACLSource) Equal(o ACLSource) bool {
	return s.Mirror == o.Mirror && slices.Equal(s.Clusters, o.Clusters)
}

// ACLResourceType is what an ACL is about, by Kafka's numbers; 8 is KIP-1279's.
type ACLResourceType int8

const (
	ACLAnyResource     ACLResourceType = 1 // in filters
	ACLTopic           ACLResourceType = 2
	ACLGroup           ACLResourceType = 3
	ACLCluster         ACLResourceType = 4
	ACLTransactionalID ACLResourceType = 5
	ACLDelegationToken ACLResourceType = 6
	ACLUser            ACLResourceType = 7
	ACLClusterMirror   ACLResourceType = 8
)

// ACLPatternType is how the name of an ACL's resource is meant.
type ACLPatternType int8

const (
	ACLAnyPattern ACLPatternType = 1 // in filters: every pattern of that very name
	// ACLMatch is for filters: every pattern under which the name would fall.
	ACLMatch    ACLPatternType = 2
	ACLLiteral  ACLPatternType = 3
	ACLPrefixed ACLPatternType = 4
)

// ACLOperation is what may be done, by Kafka's numbers.
type ACLOperation int8

const (
	ACLAnyOperation    ACLOperation = 1 // in filters
	ACLAll             ACLOperation = 2
	ACLRead            ACLOperation = 3
	ACLWrite           ACLOperation = 4
	ACLCreate          ACLOperation = 5
	ACLDelete          ACLOperation = 6
	ACLAlter           ACLOperation = 7
	ACLDescribe        ACLOperation = 8
	ACLClusterAction   ACLOperation = 9
	ACLDescribeConfigs ACLOperation = 10
	ACLAlterConfigs    ACLOperation = 11
	ACLIdempotentWrite ACLOperation = 12
	ACLCreateTokens    ACLOperation = 13
	ACLDescribeTokens  ACLOperation = 14
	ACLTwoPhaseCommit  ACLOperation = 15
)

// ACLPermission is whether an ACL gives or takes.
type ACLPermission int8

const (
	ACLAnyPermission ACLPermission = 1 // in filters
	ACLDeny          ACLPermission = 2
	ACLAllow         ACLPermission = 3
)

// ACLWildcard stands for every resource, principal name or host.
const ACLWildcard = "*"

// ClusterResource is the one name that a resource of type Cluster has.
const ClusterResource = "kafka-cluster"

var (
	resourceNames   = []string{2: "Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User", "ClusterMirror"}
	operationNames  = []string{2: "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite", "CreateTokens", "DescribeTokens", "TwoPhaseCommit"}
	patternNames    = []string{3: "Literal", "Prefixed"}
	permissionNames = []string{2: "Deny", "Allow"}
)

func (t ACLResourceType) String() string { return nameOf(resourceNames, int8(t)) }
func (o ACLOperation) String() string    { return nameOf(operationNames, int8(o)) }
func (p ACLPatternType) String() string  { return nameOf(patternNames, int8(p)) }
func (p ACLPermission) String() string   { return nameOf(permissionNames, int8(p)) }

func nameOf(names []string, i int8) string {
	if i >= 0 && int(i) < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%d", i)
}

// Valid tells whether an ACL can have the value; what only filters use cannot be.
func (t ACLResourceType) Valid() bool { return t >= ACLTopic && t <= ACLClusterMirror }
func (o ACLOperation) Valid() bool    { return o >= ACLAll && o <= ACLTwoPhaseCommit }
func (p ACLPatternType) Valid() bool  { return p == ACLLiteral || p == ACLPrefixed }
func (p ACLPermission) Valid() bool   { return p == ACLDeny || p == ACLAllow }

// Compare orders ACLs by resource first, so that one resource's are neighbours.
func (a ACL) Compare(b ACL) int {
	return cmp.Or(
		cmp.Compare(a.ResourceType, b.ResourceType), strings.Compare(a.ResourceName, b.ResourceName),
		cmp.Compare(a.Pattern, b.Pattern), strings.Compare(a.Principal, b.Principal), strings.Compare(a.Host, b.Host),
		cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Permission, b.Permission))
}

// Operations is a set of operations, a bit for each number as in the field
// AuthorizedOperations of several answers (KIP-430).
type Operations int32

// Has tells whether o is in the set.
func (s Operations) Has(o ACLOperation) bool { return s&(1<<o) != 0 }

// OperationsOf is the set of those.
func OperationsOf(ops ...ACLOperation) Operations {
	var s Operations
	for _, o := range ops {
		s |= 1 << o
	}
	return s
}

// Operations are those that ACLs of the resource type may name, as Kafka has it,
// All aside.
func (t ACLResourceType) Operations() Operations {
	switch t {
	case ACLTopic:
		return OperationsOf(ACLRead, ACLWrite, ACLCreate, ACLDescribe, ACLDelete, ACLAlter, ACLDescribeConfigs, ACLAlterConfigs)
	case ACLGroup:
		return OperationsOf(ACLRead, ACLDescribe, ACLDelete, ACLDescribeConfigs, ACLAlterConfigs)
	case ACLCluster:
		return OperationsOf(ACLCreate, ACLClusterAction, ACLDescribeConfigs, ACLAlterConfigs, ACLIdempotentWrite, ACLAlter, ACLDescribe)
	case ACLTransactionalID:
		return OperationsOf(ACLDescribe, ACLWrite, ACLTwoPhaseCommit)
	case ACLDelegationToken:
		return OperationsOf(ACLDescribe)
	case ACLUser:
		return OperationsOf(ACLCreateTokens, ACLDescribeTokens)
	case ACLClusterMirror: // spec 5.5
		return OperationsOf(ACLCreate, ACLAlter, ACLDescribe, ACLDelete, ACLDescribeConfigs, ACLAlterConfigs)
	}
	return 0
}

// ACLFilter selects ACLs, by Kafka's rules. A nil text selects any, and so do
// the Any values.
type ACLFilter struct {
	ResourceType ACLResourceType
	ResourceName *string
	Pattern      ACLPatternType
	Principal    *string
	Host         *string
	Operation    ACLOperation
	Permission   ACLPermission
}

// Matches tells whether the filter selects a.
func (f *ACLFilter) Matches(a ACL) bool {
	return (f.ResourceType == ACLAnyResource || f.ResourceType == a.ResourceType) &&
		f.matchesName(a) &&
		(f.Principal == nil || *f.Principal == a.Principal) &&
		(f.Host == nil || *f.Host == a.Host) &&
		(f.Operation == ACLAnyOperation || f.Operation == a.Operation) &&
		(f.Permission == ACLAnyPermission || f.Permission == a.Permission)
}

func (f *ACLFilter) matchesName(a ACL) bool {
	if f.Pattern.Valid() && f.Pattern != a.Pattern {
		return false
	}
	switch {
	case f.ResourceName == nil, *f.ResourceName == a.ResourceName:
		return true
	case f.Pattern != ACLMatch:
		return false
	case a.Pattern == ACLPrefixed:
		return strings.HasPrefix(*f.ResourceName, a.ResourceName)
	}
	return a.ResourceName == ACLWildcard
}
