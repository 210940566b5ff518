package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// W60, GI-25: B is started again, and stopped before its leader's PREPARING has got
// through. The controller refuses it when it comes: B has been STOPPED all the time, its
// clients have written, and no run takes that away from them.
func TestPlayLateStart(t *testing.T) {
	t.Parallel()
	p := begin(t, 160, "a writes 3, b follows, b stops")
	late := 0
	p.asking = func(b *broker, call any) {
		c, ok := call.(controller.WriteStates)
		preparing := func(w controller.MirrorStateWrite) bool { return w.State == metadata.StatePreparing }
		if ok && b.w == p.b && slices.ContainsFunc(c.Writes, preparing) && late == 0 {
			late++
			b.w.net.late[b.id] = 5 * time.Second
		}
	}
	p.want(p.b, "start", metadata.DesiredMirroring)
	p.wait("the leader asks for PREPARING", func() bool { return late > 0 })
	p.want(p.b, "stop", metadata.DesiredStopped)
	p.pass(time.Second, nil, "") // until every broker has heard
	for range 20 {
		p.write(p.b, 1)
		p.pass(500*time.Millisecond, func() bool { return p.state(p.b) != metadata.StateStopped }, "B does not stay STOPPED")
	}
	p.settles()
}
