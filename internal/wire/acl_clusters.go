package wire

import (
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// aclClusters is the number of a tagged field of ours in an ACL of DescribeAcls, far
// from those that Apache Kafka may give out. It holds a compact array of compact
// strings: the ids of the clusters from which a mirror has copied the ACL. A reader
// that does not know it skips it.
const aclClusters = 10_001

// SetACLClusters tells from which clusters an ACL was copied. It is sent from version
// 2 of the answer on.
func SetACLClusters(a *kmsg.DescribeACLsResponseResourceACL, ids []string) {
	dst := kbin.AppendCompactArrayLen(nil, len(ids))
	for _, id := range ids {
		dst = kbin.AppendCompactString(dst, id)
	}
	a.UnknownTags.Set(aclClusters, dst)
}

// ACLClusters are the clusters that SetACLClusters told; none if it told none, or
// what is there cannot be read.
func ACLClusters(a *kmsg.DescribeACLsResponseResourceACL) (ids []string) {
	a.UnknownTags.Each(func(tag uint32, value []byte) {
		if tag != aclClusters {
			return
		}
		r := kbin.Reader{Src: value}
		for range min(int(r.CompactArrayLen()), len(value)) {
			ids = append(ids, r.CompactString())
		}
		if r.Complete() != nil {
			ids = nil
		}
	})
	return ids
}
