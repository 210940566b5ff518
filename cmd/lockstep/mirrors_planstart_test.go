package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// What --start --plan prints of a failback, of a source that tells nothing, of a topic that
// nobody has yet, and of one that would be refused.
func TestMirrorsPlanStart(t *testing.T) {
	partition := func(index int32, basis string, end, cutTo, shared int64) wire.PlannedPartition {
		return wire.PlannedPartition{Partition: index, State: "STOPPED", Basis: basis, LastMirroredEpoch: -1, LogStart: 10, LogEnd: end, CutTo: cutTo, Shared: shared}
	}
	silent := partition(2, wire.BasisUnknown, -1, -1, -1)
	silent.ErrorMessage = kmsg.StringPtr("its leader here does not answer")
	plan := startPlanOf("m", &wire.StartPlan{Topics: []wire.PlannedTopic{
		{Name: "new"},
		{Name: "other", ErrorCode: 138, ErrorMessage: kmsg.StringPtr("it is mirrored in n")},
		{Name: "orders", Partitions: []wire.PlannedPartition{
			partition(0, wire.BasisLastMirrored, 107, 100, 100), partition(1, wire.BasisUnsupported, 107, 0, 90), silent,
		}},
	}})
	plan.Groups = []plannedRewind{{"readers", "Empty", 1, 5}}
	var out bytes.Buffer
	plan.print(&out)
	want := `MIRROR                         TOPIC                                    PARTITION  STATE         LOG-END         CUT-TO          CUT-RECORDS  ONLY-HERE    BASIS
m                              orders                                   0          STOPPED       107             100             7            7            last-mirrored
m                              orders                                   1          STOPPED       107             0               97           17           not-told
m                              orders                                   2          STOPPED       ?               ?               ?            ?            unknown

other would not be started: it is mirrored in n [TOPIC_ALREADY_IN_CLUSTER_MIRROR 138]
orders-2: its leader here does not answer
Made anew, with nothing to cut: 1 topic(s).
Cut with --start: 104 record(s) in 3 partition(s); 24 of them are only here: the source does not have them.
1 partition(s) not-told: the source, an Apache Kafka, does not know last mirrored epochs: cut to nothing, and copied anew.
Not known for 1 partition(s).

GROUP                                    STATE                PARTITIONS SET-BACK
readers                                  Empty                1          5

Their offsets above a cut are set back to it, where a group has no members.
Nothing was changed.
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}

	// A broker of before plans nothing, and is not asked to start either.
	f := newFakeMirrors(t, new(wire.DescribeClusterMirrorsResponse))
	_, errOut, code := f.run("--bootstrap-server", f.addr(), "--start", "--all", "--mirror", "m", "--plan")
	if code != exitFailed || !strings.Contains(errOut, "older version") {
		t.Errorf("an older broker: exit %d, %q", code, errOut)
	}
}
