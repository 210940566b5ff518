package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The active controller drives [sessions] here: with heartbeats and ends of logs,
// which come as requests, with connections that broke, and with time. What sessions
// answer is carried out like any other command.

const (
	// maxTicks bounds the batches that one tick carries out before requests have
	// their turn again.
	maxTicks = 16
	// lostQueue bounds the news of broken connections. More are dropped: their
	// sessions end by themselves.
	lostQueue = 64
	// lostFor is how long the loss of a node says something to who comes into office.
	lostFor = 10 * time.Second
	// policyTimeout bounds one question to the policy of unclean elections.
	policyTimeout = 30 * time.Second
)

// endsReport is a call of ReportEnds.
type endsReport struct {
	Broker BrokerEpoch
	Ends   []ReplicaEnd
}

// tell has who is in office here hear that a broker is not connected.
func (c *Controller) tell(l loss) {
	select {
	case c.lost <- l:
	default:
	}
}

// note keeps a loss for who comes into office here soon: there may be nobody now.
func (c *Controller) note(l loss) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLossesLocked()
	c.mu.losses[l] = c.o.Clock.Now()
}

// lately are the losses of a moment ago.
func (c *Controller) lately() []loss {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLossesLocked()
	return slices.Collect(maps.Keys(c.mu.losses))
}

func (c *Controller) forgetLossesLocked() {
	now := c.o.Clock.Now()
	maps.DeleteFunc(c.mu.losses, func(_ loss, at time.Time) bool { return now.Sub(at) >= lostFor })
}

// complete answers the commands of a request, with what only the active controller
// knows: who is alive, and whose logs cannot be used.
func (c *Controller) complete(img *metadata.Image, r *request) ([]Command, error) {
	now := c.o.Clock.Now()
	switch {
	case r.beat != nil:
		return c.sessions.heartbeat(now, img, *r.beat)
	case r.ends != nil:
		return c.sessions.reportEnds(now, img, r.ends.Broker, r.ends.Ends)
	}
	cmds := r.cmds
	replace := func(i int, cmd Command) {
		if &cmds[0] == &r.cmds[0] {
			cmds = append([]Command(nil), r.cmds...) // a batch may be decided twice
		}
		cmds[i] = cmd
	}
	for i, cmd := range r.cmds {
		switch cmd := cmd.(type) {
		case registerBroker:
			replace(i, c.sessions.admit(now, img, cmd))
		case electUnclean:
			replace(i, c.sessions.knowing(img, cmd))
		}
	}
	return cmds, nil
}

// failedPause is before what could not be written is tried again: a store that is full
// refuses at once.
const failedPause = watchInterval

// tick does what time asks for, and answers how long to wait for the next one. An error
// means that the term is over.
func (c *Controller) tick(t *term) (wait time.Duration, err error) {
	for range maxTicks {
		cmds := c.sessions.tick(c.o.Clock.Now(), c.Image())
		if len(cmds) == 0 {
			c.failing = ""
			break
		}
		r := &request{ctx: c.stopCtx, cmds: cmds, reply: make(chan reply, 1)}
		if err := c.carryOut(t, []*request{r}); err != nil {
			return 0, err
		}
		rep := <-r.reply
		for i, it := range rep.items {
			if it.err != nil {
				c.o.Logger.Warn("the controller's own command was refused", "command", fmt.Sprintf("%T", cmds[i]), "error", it.err)
			}
		}
		if rep.err != nil {
			if text := rep.err.Error(); text != c.failing {
				c.failing = text
				c.o.Logger.Warn("the controller's own commands failed; they are tried again", "error", rep.err)
			}
			wait = failedPause
			break
		}
		c.failing = ""
	}
	c.unclean()
	return max(wait, c.sessions.nextDeadline().Sub(c.o.Clock.Now())), nil
}

// unclean has the policy asked about partitions that only somebody can lead who may
// lack records. One question is asked at a time: the next are those of the tick after
// the answer.
func (c *Controller) unclean() {
	if !c.asking.CompareAndSwap(false, true) {
		return
	}
	choices := c.sessions.unclean(c.Image())
	if len(choices) == 0 {
		c.asking.Store(false)
		return
	}
	c.wg.Go(func() {
		defer c.asking.Store(false)
		for _, u := range choices {
			c.electUnclean(u)
		}
	})
}

func (c *Controller) electUnclean(u uncleanChoice) {
	log := c.o.Logger.With("topic", u.Topic.Name, "partition", u.Partition.Index, "live", u.Live)
	ctx, cancel := context.WithTimeout(c.stopCtx, policyTimeout)
	defer cancel()
	leader, err := decideUnclean(ctx, c.o.UncleanElection, u)
	if err != nil {
		log.Warn("the partition stays without a leader", "error", err)
		return
	}
	rep := c.local(ctx, request{cmds: []Command{electUnclean{Topic: u.Topic.ID, Partition: u.Partition.Index, Leader: leader, Defaults: c.defaults()}}})
	if rep.err == nil {
		rep.err = rep.items[0].err
	}
	if rep.err != nil {
		log.Warn("an unclean election failed", "leader", leader, "error", rep.err)
	}
}
