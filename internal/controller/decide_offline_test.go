package controller

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// An unclean election passes over replicas whose logs their brokers cannot use: the
// records of one whose log directory is offline would be cut off everywhere for a leader
// that can neither read nor write.
func TestUncleanWithoutLogs(t *testing.T) {
	named := func(topic metadata.TopicID, partitions ...int32) []UnusableReplicas {
		return []UnusableReplicas{{topic, partitions}}
	}
	many := make([]int32, MaxUnusable)
	for i := range many {
		many[i] = int32(i) + 1000
	}
	for name, c := range map[string]struct {
		unusable map[int32][]UnusableReplicas // by broker
		live     string                       // of the choice; empty: there is none
	}{
		"all logs can be used":          {nil, "[2 3]"},
		"one has its directory offline": {map[int32][]UnusableReplicas{2: named(testID(1), 0)}, "[3]"},
		"the other one":                 {map[int32][]UnusableReplicas{3: named(testID(1), 4, 0)}, "[2]"},
		"both":                          {map[int32][]UnusableReplicas{2: named(testID(1), 0), 3: named(testID(1), 0)}, ""},
		"another partition of it":       {map[int32][]UnusableReplicas{2: named(testID(1), 1)}, "[2 3]"},
		"another topic":                 {map[int32][]UnusableReplicas{2: named(testID(2), 0)}, "[2 3]"},
		"more than a heartbeat names, this one may be": {map[int32][]UnusableReplicas{2: named(testID(2), many...)}, "[3]"},
	} {
		c1 := newCluster(t, 3, true, 1)
		c1.beatAll()
		c1.do(alterConfigs{AlterConfigs{Type: ResourceTopic, Name: "t", Ops: []ConfigOp{{Name: metadata.UncleanElectionConfig, Value: ptr("true")}}}, c1.def()})
		p := c1.partition()
		c1.do(alterISR{Broker: c1.brokers[1].registered, Defaults: c1.def(), AlterISR: AlterISR{Topic: testID(1), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: []ISRMember{{1, -1}}}})
		for id := int32(2); id <= 3; id++ {
			at := c1.brokers[id].registered
			if _, err := c1.s.heartbeat(c1.now, c1.image(), Heartbeat{Broker: id, Epoch: at.Epoch, Revision: c1.image().Revision, Unusable: c.unusable[id]}); err != nil {
				t.Fatal(err)
			}
		}
		c1.s.lose(c1.now, loss{broker: 1})
		c1.pass(600 * time.Millisecond)
		live := ""
		for _, u := range c1.s.unclean(c1.image()) {
			live = fmt.Sprint(u.Live)
		}
		if live != c.live {
			t.Errorf("%s: the choice is %s, want %s", name, live, c.live)
		}
		// An operator's word does not make such a log lead either.
		for id := int32(2); id <= 3; id++ {
			cmd := c1.s.knowing(c1.image(), electUnclean{Topic: testID(1), Leader: id, Defaults: c1.def()})
			_, err := Decide(c1.image(), cmd)
			if refused, want := errors.Is(err, ErrEligibleLeadersNotAvailable), !strings.Contains(c.live, fmt.Sprint(id)); refused != want {
				t.Errorf("%s: broker %d by an operator's word: %v", name, id, err)
			}
		}
	}
}

// What a heartbeat says is bounded, and forgotten by the next one that does not say it.
func TestUnusable(t *testing.T) {
	a, b := testID(1), testID(2)
	if got, want := Unusable([]OfflineReplica{{a, 0, 0}, {a, 3, 0}, {b, 1, 0}}), []UnusableReplicas{{a, []int32{0, 3}}, {b, []int32{1}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	many := make([]OfflineReplica, MaxUnusable+7)
	for i := range many {
		many[i] = OfflineReplica{a, int32(i), 0}
	}
	if got := Unusable(many); len(got) != 1 || len(got[0].Partitions) != MaxUnusable {
		t.Errorf("%d topics", len(got))
	}
	if u, err := newUnusable(Unusable(many)); err != nil || !u.all || !u.has(partitionKey{b, 77}) {
		t.Errorf("as many as there may be: %v, %v", u.all, err)
	}
	if u, err := newUnusable(Unusable(many[:MaxUnusable-1])); err != nil || u.all || u.has(partitionKey{b, 77}) || !u.has(partitionKey{a, 77}) {
		t.Errorf("one less: %v, %v", u.all, err)
	}
	too := append(Unusable(many), UnusableReplicas{b, []int32{0}})
	if _, err := newUnusable(too); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("one more: %v", err)
	}
	c := newCluster(t, 3, true, 1)
	c.beatAll()
	for _, named := range [][]UnusableReplicas{{{a, []int32{0}}}, nil} {
		hb := Heartbeat{Broker: 2, Epoch: c.brokers[2].registered.Epoch, Revision: c.image().Revision, Unusable: named}
		if _, err := c.s.heartbeat(c.now, c.image(), hb); err != nil {
			t.Fatal(err)
		}
		if got := c.s.unusable(c.image(), c.image().Topic("t"), c.partition()); (len(got) > 0) != (named != nil) {
			t.Errorf("after %v: %v", named, got)
		}
	}
}
