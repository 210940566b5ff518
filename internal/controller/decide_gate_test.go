package controller

import (
	"errors"
	"reflect"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Who was left out of a gate is remembered until a gate that it passed, and goes back
// as far as the furthest of those it missed.
func TestPassGate(t *testing.T) {
	stale := func(id, barrier int32, offset int64) metadata.StaleReplica {
		return metadata.StaleReplica{ID: id, Barrier: barrier, Offset: offset}
	}
	for name, c := range map[string]struct {
		before    []metadata.StaleReplica
		barrier   int32
		target    int64
		confirmed []int32
		want      []metadata.StaleReplica
		number    int32
		unchanged bool
	}{
		"all of them":              {confirmed: []int32{1, 2, 3}, target: 120, unchanged: true},
		"one is away":              {confirmed: []int32{1, 2}, target: 120, want: []metadata.StaleReplica{stale(3, 1, 120)}, number: 1},
		"and stays away":           {[]metadata.StaleReplica{stale(3, 1, 120)}, 1, 200, []int32{1, 2}, []metadata.StaleReplica{stale(3, 2, 120)}, 2, false},
		"a later gate cuts deeper": {[]metadata.StaleReplica{stale(3, 1, 120)}, 1, 80, []int32{1, 2}, []metadata.StaleReplica{stale(3, 2, 80)}, 2, false},
		"another one is away":      {[]metadata.StaleReplica{stale(3, 1, 120)}, 1, 200, []int32{1, 3}, []metadata.StaleReplica{stale(2, 2, 200)}, 2, false},
		"it is back":               {[]metadata.StaleReplica{stale(3, 1, 120)}, 1, 200, []int32{1, 2, 3}, nil, 1, false},
		"it has no replica now":    {[]metadata.StaleReplica{stale(9, 1, 120)}, 1, 200, []int32{1, 2, 3}, nil, 1, false},
	} {
		p := &metadata.Partition{Replicas: []int32{1, 2, 3}, LeaderEpoch: 4, PartitionEpoch: 7, Barrier: c.barrier, Stale: c.before}
		got, err := passGate(p, &MirrorGate{Target: c.target, Confirmed: c.confirmed, PartitionEpoch: 7})
		switch {
		case err != nil || (got == nil) != c.unchanged:
			t.Errorf("%s: %+v, %v", name, got, err)
		case got == nil:
		case !reflect.DeepEqual(got.Stale, c.want) || got.Barrier != c.number || got.PartitionEpoch != 8:
			t.Errorf("%s: %+v", name, got)
		}
		// Who is left out and follows has to know it: it did not in the old leader epoch.
		if got != nil && (got.LeaderEpoch > 4) != (len(c.want) > 0) {
			t.Errorf("%s: leader epoch %d", name, got.LeaderEpoch)
		}
		if got != nil {
			again, err := decodePartition(encodePartition(got))
			if err != nil || again.Barrier != got.Barrier || !reflect.DeepEqual(again.Stale, got.Stale) {
				t.Errorf("%s: stored as %+v, %v", name, again, err)
			}
		}
	}
	p := &metadata.Partition{Replicas: []int32{1, 2, 3}, PartitionEpoch: 8}
	if _, err := passGate(p, &MirrorGate{Confirmed: []int32{1, 2}, PartitionEpoch: 7}); !errors.Is(err, ErrInvalidUpdateVersion) {
		t.Errorf("the ISR has changed meanwhile: %v", err)
	}
}

// A broker was left out of a gate and lost its replica while it was away: the gate's
// record of it went with the replica. Then it got the replica back, and came back with
// what the others had cut. A new replica of a partition that a mirror has cut begins anew,
// unless it has the last barrier behind it.
func TestReassignToWhoWasAway(t *testing.T) {
	img := metadata.NewImage()
	b := newBuilder(img)
	p := &metadata.Partition{Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, Barrier: 3, Stale: []metadata.StaleReplica{{ID: 2, Barrier: 3, Offset: 9}}}
	changes := []Change{putPartition{ID: testID(1), Partition: p}, putTopic{testID(1), "orders", false, 1, nil, 0}}
	for id := range int32(3) {
		changes = append(changes, putBroker{&metadata.Broker{ID: id + 1}})
	}
	if err := b.apply(changes, 1); err != nil {
		t.Fatal(err)
	}
	move := func(to ...int32) *metadata.Partition {
		t.Helper()
		changes, err := decideReassign(b.view(), reassign{Reassign: Reassign{Topic: "orders", Replicas: to}, AllowRFChange: true})
		if err != nil || len(changes) != 1 {
			t.Fatalf("%v, %v", changes, err)
		}
		return changes[0].(putPartition).Partition
	}
	want := []metadata.StaleReplica{{ID: 2, Barrier: 3, Offset: 9}, {ID: 3, Barrier: 3}}
	if got := move(1, 3); !reflect.DeepEqual(got.Stale, want) || got.Barrier != 3 {
		t.Errorf("%+v", got)
	}
	if got := move(2, 1); !reflect.DeepEqual(got.Stale, p.Stale) {
		t.Errorf("in another order: %+v", got)
	}
}

// min.insync.replicas was raised while a gate's record was under way: the gate opened to one
// replica where two were asked for. The configs of the moment count, not those under which
// the leader looked.
func TestGateOfOldConfigs(t *testing.T) {
	for name, c := range map[string]struct {
		configs map[string]string
		isr     []int32
		state   metadata.MirrorState
		refused bool
	}{
		"as many as asked for":   {map[string]string{"min.insync.replicas": "2"}, []int32{1, 2}, metadata.StatePreparing, false},
		"one too few":            {map[string]string{"min.insync.replicas": "2"}, []int32{1}, metadata.StatePreparing, true},
		"fewer replicas than it": {map[string]string{"min.insync.replicas": "5"}, []int32{1, 2, 3}, metadata.StatePreparing, false},
		"all, for the option":    {map[string]string{metadata.MirrorULEConfig: "true"}, []int32{1, 2}, metadata.StatePreparing, true},
		"all, for the recovery":  {nil, []int32{1, 2}, metadata.StateULERecovery, true},
		"and they are all":       {nil, []int32{3, 1, 2}, metadata.StateULERecovery, false},
	} {
		b := newBuilder(metadata.NewImage())
		p := &metadata.Partition{Replicas: []int32{1, 2, 3}, ISR: c.isr, Leader: 1, PartitionEpoch: 7}
		state := noState("m")
		state.State = c.state
		err := b.apply([]Change{putPartition{ID: testID(1), Partition: p}, putTopic{testID(1), "orders", false, 1, c.configs, 0},
			setAttachment{ID: testID(1), Value: "m"}, putState{testID(1), 0, &state}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = decideWriteState(b.view(), writeState{"m", MirrorStateWrite{Topic: testID(1), State: metadata.StateMirroring, LeaderEpoch: -1, StateEpoch: -1,
			Gate: &MirrorGate{Target: 9, Confirmed: c.isr, PartitionEpoch: 7}}})
		if c.refused != errors.Is(err, ErrInvalidUpdateVersion) || !c.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
