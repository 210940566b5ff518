package mirror

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A gate was passed and MIRRORING written, but the answer was lost. The image showed
// the state, our epoch was raised, and the repeated write was refused, because the gate
// was passed in another partition epoch. The partition then stayed MIRRORING for ever
// and fetched nothing: the wish was given up, and nobody began what belongs to the
// state. (Simulation of two clusters, seed 8.)
func TestLostAnswerOfMirroring(t *testing.T) {
	view := gateView{leader: 1, partitionEpoch: 0, replicas: []int32{1, 2}, isr: []int32{1, 2}, minISR: 1}
	m := &machine{random: func() float64 { return 0 }, state: metadata.StateUnknown}
	record := func(s metadata.MirrorState, epoch int32) *metadata.MirrorPartition {
		return &metadata.MirrorPartition{Mirror: "m", State: s, StateEpoch: epoch}
	}
	m.step(assigned{desired: metadata.DesiredMirroring, view: view})
	m.step(recorded{record: record(metadata.StatePreparing, 1)})
	m.step(finished{seq: m.seq})
	m.step(finished{seq: m.seq})
	m.step(fetchedBy{replica: 2})
	if !m.writing || m.want.to != metadata.StateMirroring {
		t.Fatalf("the gate was not passed: %+v", m)
	}
	m.step(recorded{err: errors.New("no answer"), record: record(metadata.StatePreparing, 1)})
	view.leaderEpoch, view.partitionEpoch = 11, 1
	m.step(assigned{desired: metadata.DesiredMirroring, view: view, record: record(metadata.StateMirroring, 2)})
	m.step(due{timerRewrite})
	if m.writing {
		m.step(recorded{err: controller.ErrInvalidUpdateVersion, record: record(metadata.StateMirroring, 2)})
		m.step(due{timerRewrite})
	}
	if m.state != metadata.StateMirroring || m.action != actMirror && !m.writing {
		t.Fatalf("state %v with action %v: nobody fetches", m.state, m.action)
	}
}
