package wire

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestACLClusters: what is told is heard over the wire, and what is cut is nothing.
func TestACLClusters(t *testing.T) {
	acl := kmsg.NewDescribeACLsResponseResourceACL()
	acl.Principal = "User:a"
	want := []string{"a cluster", "another"}
	SetACLClusters(&acl, want)
	sent := kmsg.DescribeACLsResponse{Version: 3, Resources: []kmsg.DescribeACLsResponseResource{{ACLs: []kmsg.DescribeACLsResponseResourceACL{acl, {}}}}}
	got := kmsg.DescribeACLsResponse{Version: 3}
	if err := got.ReadFrom(sent.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	acls := got.Resources[0].ACLs
	if ids := ACLClusters(&acls[0]); !slices.Equal(ids, want) || acls[0].Principal != "User:a" {
		t.Errorf("%q of %q", ids, acls[0].Principal)
	}
	if ids := ACLClusters(&acls[1]); ids != nil {
		t.Errorf("of one that is nobody's: %q", ids)
	}
	acls[0].UnknownTags.Each(func(tag uint32, value []byte) {
		for n := range len(value) {
			cut := kmsg.DescribeACLsResponseResourceACL{}
			cut.UnknownTags.Set(tag, value[:n])
			if ids := ACLClusters(&cut); ids != nil {
				t.Errorf("%d of %d bytes: %q", n, len(value), ids)
			}
		}
		huge := kmsg.DescribeACLsResponseResourceACL{}
		huge.UnknownTags.Set(tag, []byte{0xff, 0xff, 0xff, 0xff, 0x07})
		if ids := ACLClusters(&huge); ids != nil {
			t.Errorf("an array that ends before it begins: %q", ids)
		}
	})
}
