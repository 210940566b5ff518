package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

const (
	// patience bounds a call whose caller set no deadline.
	patience = 30 * time.Second
	// forwardPause is between two looks for the active controller; news of it end
	// the pause.
	forwardPause = 100 * time.Millisecond
	// forwardTimeout bounds one try to have another node carry a request out: a
	// node that vanished without a word must not keep a caller who could go on with
	// its successor.
	forwardTimeout = 10 * time.Second
)

// submit has commands carried out by whoever is the active controller, and answers
// when the local image shows what they did.
func (c *Controller) submit(ctx context.Context, headed bool, cmds ...Command) reply {
	return c.ask(ctx, request{cmds: cmds, headed: headed})
}

// dry has commands decided and changes nothing.
func (c *Controller) dry(ctx context.Context, headed bool, cmds ...Command) reply {
	return c.ask(ctx, request{cmds: cmds, headed: headed, dry: true})
}

// ask goes on across changes of the controller until ctx ends. A request of unknown
// fate is only repeated if all its commands can be.
func (c *Controller) ask(ctx context.Context, r request) reply {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	again := r.dry || allRepeatable(r.cmds) // heartbeats and ends have no commands yet
	unsure := false
	var none error // why the last try found no controller
	for {
		changed := c.changed()
		rep := c.tryOnce(ctx, r)
		if none != nil && rep.err != nil && ctx.Err() != nil && errors.Is(rep.err, ctx.Err()) {
			rep.err = fmt.Errorf("%w: %w", none, rep.err)
			return rep
		}
		unsure = unsure || rep.unsure
		rep.repeated = unsure
		retry := errors.Is(rep.err, ErrNotController)
		if rep.unsure {
			retry = again
		}
		if !retry || ctx.Err() != nil {
			return rep
		}
		none = rep.err
		if !c.waitChange(ctx, changed) {
			if c.stopCtx.Err() != nil {
				rep.err = ErrClosed
			}
			return rep
		}
	}
}

func allRepeatable(cmds []Command) bool {
	for _, cmd := range cmds {
		if !repeatable(cmd) {
			return false
		}
	}
	return true
}

// done takes a refusal back that only says that an earlier try of the same request,
// of which nobody heard, succeeded.
func (rep *reply) done(i int, refusal error, is func(img *metadata.Image) bool) {
	if rep.err == nil && rep.repeated && errors.Is(rep.items[i].err, refusal) && is(rep.img) {
		rep.items[i].err = nil
	}
}

// always is for refusals that can only have that reason.
func always(*metadata.Image) bool { return true }

// changes are what a search for the controller waits for.
type changes struct{ office, store <-chan struct{} }

func (c *Controller) changed() changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, store := c.follower.office()
	return changes{c.mu.changed, store}
}

// waitChange answers false when ctx, or the controller, ended.
func (c *Controller) waitChange(ctx context.Context, ch changes) bool {
	t := c.o.Clock.NewTimer(forwardPause)
	defer t.Stop()
	select {
	case <-ch.office:
	case <-ch.store:
	case <-t.C():
	case <-ctx.Done():
	case <-c.stopCtx.Done():
	}
	return ctx.Err() == nil && c.stopCtx.Err() == nil
}

// tryOnce asks the active controller of this moment. ErrNotController: there is
// none, or it was not reached, or is none any more.
func (c *Controller) tryOnce(ctx context.Context, r request) reply {
	if c.Leading() || c.nodes == nil {
		return c.local(ctx, r)
	}
	standing, _ := c.follower.office()
	holder, ok := standing.holder()
	switch {
	case !ok:
		return reply{err: fmt.Errorf("%w: none is elected", ErrNotController)}
	case holder.node == c.o.NodeID && !c.o.BrokerOnly:
		return reply{err: fmt.Errorf("%w: taking office", ErrNotController)}
	case holder.addr == "":
		return reply{err: fmt.Errorf("%w: node %d is, and has no controller listener", ErrNotController, holder.node)}
	}
	return c.forward(ctx, holder, r)
}

// local has this node's controller carry a request out, which must be the active
// one.
func (c *Controller) local(ctx context.Context, r request) reply {
	if r.dry {
		return c.decideOnly(&r)
	}
	r.ctx, r.reply = ctx, make(chan reply, 1)
	select {
	case c.requests <- &r:
	case <-ctx.Done():
		return reply{err: ctx.Err()}
	case <-c.stopCtx.Done():
		return reply{err: ErrClosed}
	}
	select {
	case rep := <-r.reply:
		return rep
	case <-ctx.Done():
		// It may still be carried out.
		return reply{err: ctx.Err(), unsure: true}
	case <-c.stopCtx.Done():
		return reply{err: ErrClosed, unsure: true}
	}
}

// decideOnly decides commands and changes nothing.
func (c *Controller) decideOnly(r *request) reply {
	if !c.Leading() {
		return reply{err: ErrNotController}
	}
	img := c.Image()
	items, err := c.decideAll(newBuilder(img), r.headed, r.cmds)
	return reply{img: img, items: items, err: err}
}

// forward has another node carry a request out.
func (c *Controller) forward(ctx context.Context, to contender, r request) reply {
	cmds, err := encodeCommands(r.cmds)
	if err != nil {
		return reply{err: err}
	}
	try, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var answer submitAnswer
	if err := c.nodes.call(try, to.addr, "Submit", &submitCall{r.headed, r.dry, cmds, r.beat, r.ends}, &answer); err != nil {
		if ctx.Err() != nil {
			return reply{err: ctx.Err(), unsure: true}
		}
		if errors.Is(err, ErrInvalidRequest) {
			return reply{err: err}
		}
		return reply{err: fmt.Errorf("%w: %w", ErrNotController, err), unsure: !errors.Is(err, errNotSent)}
	}
	if err := decodeError(answer.Err); err != nil {
		if errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: node %d: %s", ErrNotController, to.node, answer.Err.Text) // that node's end is not ours
		}
		return reply{err: err, unsure: answer.Unsure}
	}
	if r.beat != nil || r.ends != nil {
		return reply{img: c.Image(), beat: answer.Beat} // nobody waits for the image
	}
	items, err := c.codec.decodeOutcomes(answer.Outcomes, len(r.cmds), answer.Revision)
	if err != nil {
		return reply{err: fmt.Errorf("answer of the controller at %s: %w", to.addr, err), unsure: true}
	}
	// A dry decision was made on an image that this node may not have either.
	img, err := c.follower.wait(ctx, answer.Revision)
	return reply{img: img, items: items, err: err, unsure: err != nil}
}

// answerSubmit carries out what another node forwards.
func (c *Controller) answerSubmit(ctx context.Context, in *submitCall) *submitAnswer {
	cmds, err := decodeCommands(in.Commands)
	if err == nil && !c.Leading() {
		err = ErrNotController
	}
	if err != nil {
		return &submitAnswer{Err: encodeError(err)}
	}
	rep := c.local(ctx, request{cmds: cmds, headed: in.Headed, dry: in.Dry, beat: in.Beat, ends: in.Ends})
	if rep.err != nil {
		return &submitAnswer{Err: encodeError(rep.err), Unsure: rep.unsure}
	}
	a := &submitAnswer{Revision: rep.img.Revision, Beat: rep.beat}
	if in.Beat == nil && in.Ends == nil {
		a.Outcomes = encodeOutcomes(rep.items)
	}
	return a
}
