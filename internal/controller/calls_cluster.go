package controller

import (
	"context"
	"errors"
	"fmt"
)

// RegisterBroker registers a started broker and answers its broker epoch. The broker
// is fenced until its first heartbeat.
func (c *Controller) RegisterBroker(ctx context.Context, r RegisterBroker) (brokerEpoch int64, err error) {
	// The process of this node that was registered before cannot be there any more:
	// the metadata directory is locked by us.
	rep := c.submit(ctx, true, registerBroker{RegisterBroker: r, Ended: r.ID == c.o.NodeID, Defaults: c.defaults()})
	if rep.err != nil {
		return 0, fmt.Errorf("register broker %d: %w", r.ID, rep.err)
	}
	return rep.img.Broker(r.ID).Epoch, nil
}

// UnregisterBroker forgets a broker that is not alive.
func (c *Controller) UnregisterBroker(ctx context.Context, id int32) error {
	rep := c.submit(ctx, true, unregisterBroker{id, c.defaults()})
	if err := rep.err; err != nil && !(rep.repeated && errors.Is(err, ErrUnknownBroker)) {
		return fmt.Errorf("unregister broker %d: %w", id, err)
	}
	return nil
}

// Heartbeat keeps a broker's session, and tells what has become of it. The local
// image may not show that yet.
func (c *Controller) Heartbeat(ctx context.Context, hb Heartbeat) (HeartbeatResult, error) {
	rep := c.ask(ctx, request{beat: &hb})
	if rep.err != nil {
		return HeartbeatResult{}, fmt.Errorf("heartbeat of broker %d: %w", hb.Broker, rep.err)
	}
	return rep.beat, nil
}

// ReportEnds tells how far logs reach that came back from an unclean stop, for the
// partitions that wait for it (rule 8).
func (c *Controller) ReportEnds(ctx context.Context, broker int32, brokerEpoch int64, ends []ReplicaEnd) error {
	if err := c.ask(ctx, request{ends: &endsReport{BrokerEpoch{broker, brokerEpoch}, ends}}).err; err != nil {
		return fmt.Errorf("report ends of logs of broker %d: %w", broker, err)
	}
	return nil
}

// AlterISRs carries out a leader's wishes for other ISRs, each for itself.
func (c *Controller) AlterISRs(ctx context.Context, broker int32, brokerEpoch int64, wishes []AlterISR) []AlterISRResult {
	cmds := make([]Command, len(wishes))
	for i, w := range wishes {
		cmds[i] = alterISR{Broker: BrokerEpoch{broker, brokerEpoch}, AlterISR: w, Defaults: c.defaults()}
	}
	rep := c.do(ctx, false, false, cmds)
	img := rep.img
	if img == nil {
		img = c.Image()
	}
	results := make([]AlterISRResult, len(wishes))
	for i, err := range itemErrors(rep, len(cmds)) {
		results[i] = AlterISRResult{img.Partition(wishes[i].Topic, wishes[i].Partition), err}
	}
	return results
}

// ElectLeaders elects leaders, each for itself. An unclean election is the operator's
// word in place of unclean.leader.election.enable; the policy is asked all the same.
func (c *Controller) ElectLeaders(ctx context.Context, elections []ElectLeader) []error {
	cmds := make([]Command, len(elections))
	for i, e := range elections {
		cmds[i] = electLeader{e, c.defaults()}
	}
	rep := c.do(ctx, false, false, cmds)
	for i := range cmds {
		rep.done(i, ErrElectionNotNeeded, always)
	}
	errs := itemErrors(rep, len(cmds))
	for i, e := range elections {
		if e.Unclean && errors.Is(errs[i], ErrEligibleLeadersNotAvailable) {
			errs[i] = c.electAny(ctx, e, errs[i])
		}
	}
	return errs
}

// electAny has a replica lead that may lack records, the first that can; refusal is why
// none leads that has them all.
func (c *Controller) electAny(ctx context.Context, e ElectLeader, refusal error) error {
	img := c.Image()
	t := img.Topic(e.Topic)
	p := t.Partition(e.Partition)
	if p == nil {
		return refusal
	}
	u, ok := replicasOf(img, c.defaults()).uncleanChoiceOf(t, p)
	u.Allowed = true
	for ok && len(u.Live) > 0 {
		leader, err := decideUnclean(ctx, c.o.UncleanElection, u)
		if err != nil {
			return fmt.Errorf("elect leader of %s-%d: %w: %w", t.Name, p.Index, ErrEligibleLeadersNotAvailable, err)
		}
		rep := c.do(ctx, false, false, []Command{electUnclean{Topic: t.ID, Partition: p.Index, Leader: leader, Defaults: c.defaults()}})
		refusal = itemErrors(rep, 1)[0]
		if !errors.Is(refusal, ErrEligibleLeadersNotAvailable) {
			return refusal
		}
		u.Live = minus(u.Live, []int32{leader}) // it is gone, or its log cannot be used
	}
	return refusal
}

// Reassign moves partitions to other replicas, each for itself. It returns when the
// moves have begun.
func (c *Controller) Reassign(ctx context.Context, moves []Reassign, allowRFChange bool) []error {
	cmds := make([]Command, len(moves))
	for i, m := range moves {
		cmds[i] = reassign{m, allowRFChange, c.defaults()}
	}
	return itemErrors(c.do(ctx, false, false, cmds), len(cmds))
}
