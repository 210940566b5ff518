package controller

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// request is one call: commands decided in order, each on the image that the ones
// before it leave behind.
type request struct {
	ctx  context.Context
	cmds []Command
	// headed says that the first command speaks for all: if it is refused,
	// nothing is done.
	headed bool
	dry    bool // decide only
	// beat and ends stand for the commands that the active controller makes of them.
	beat  *Heartbeat
	ends  *endsReport
	reply chan reply // cap 1: the controller never waits for a caller
}

// reply answers a request.
type reply struct {
	// img shows what the request did.
	img *metadata.Image
	// items has one outcome per command.
	items []outcome
	// beat answers a heartbeat.
	beat HeartbeatResult
	// err is set if the request as a whole was not carried out. Commands whose
	// items have no error may then have taken effect.
	err error
	// unsure says that err leaves open whether something was done.
	unsure bool
	// repeated says that an earlier try of the same request left that open: what
	// it finds done may be its own doing.
	repeated bool
}

// outcome is what became of one command.
type outcome struct {
	changes []Change
	groups  [][]write // the changes as they are stored
	err     error
}

// Bounds of one batch of requests: enough that many small callers share
// transactions, and few enough that the first one does not wait long.
const (
	maxBatchRequests = 256
	maxBatchCommands = 16_384
)

// chainAttempts is how often a batch is decided anew because an earlier
// transaction of unknown fate turned up.
const chainAttempts = 3

// gather takes what else is waiting, up to the bounds of a batch.
func (c *Controller) gather(first *request) []*request {
	batch, n := []*request{first}, len(first.cmds)
	for len(batch) < maxBatchRequests && n < maxBatchCommands {
		select {
		case r := <-c.requests:
			batch, n = append(batch, r), n+len(r.cmds)
			continue
		default:
		}
		break
	}
	return batch
}

func (c *Controller) drain() {
	for {
		select {
		case r := <-c.requests:
			r.reply <- reply{err: ErrClosed}
		default:
			return
		}
	}
}

func answerAll(batch []*request, err error) {
	for _, r := range batch {
		r.reply <- reply{err: err}
	}
}

// carryOut decides a batch, commits it and answers it when the image shows it. An
// error means that the term is over; all requests have been answered then too.
func (c *Controller) carryOut(t *term, batch []*request) error {
	for attempt := 1; ; attempt++ {
		prev := c.Image()
		replies, p := c.plan(batch)
		done, revision, err := c.commit(t, p)
		if errors.Is(err, errChain) && done == 0 && attempt < chainAttempts {
			if _, err = c.settle(t); err == nil {
				continue
			}
		}
		var img *metadata.Image
		if err == nil {
			img, err = c.follower.wait(c.stopCtx, revision)
		}
		if err != nil {
			return c.broken(t, batch, replies, p, done, err)
		}
		for i, r := range batch {
			replies[i].img = img
			c.tellOf(prev, r.cmds, replies[i].items)
			if r.beat != nil {
				replies[i].beat = heartbeatAnswer(img, *r.beat)
			}
			r.reply <- replies[i]
		}
		return nil
	}
}

// plan decides every request of a batch, and packs the changes.
func (c *Controller) plan(batch []*request) ([]reply, *pack) {
	scratch := newBuilder(c.Image())
	replies := make([]reply, len(batch))
	p := &pack{most: c.etcd.txnOps() - 1}
	for i, r := range batch {
		if err := r.ctx.Err(); err != nil {
			replies[i].err = err
			continue
		}
		cmds, err := c.complete(scratch.view(), r)
		if err != nil {
			replies[i].err = err
			continue
		}
		r.cmds = cmds
		replies[i].items, replies[i].err = c.decideAll(scratch, r.headed, cmds)
		for _, it := range replies[i].items {
			for _, g := range it.groups {
				p.add(g)
			}
		}
	}
	return replies, p
}

// decideAll decides the commands of one request on s, and applies what they
// change to it. It answers an error only with no changes at all.
func (c *Controller) decideAll(s *builder, headed bool, cmds []Command) ([]outcome, error) {
	items := make([]outcome, len(cmds))
	for i, cmd := range cmds {
		it := &items[i]
		if it.changes, it.err = Decide(s.view(), cmd); it.err == nil {
			it.groups, it.err = c.codec.groups(it.changes)
		}
		if it.err == nil {
			it.err = s.apply(it.changes, s.view().Revision+1)
		}
		if it.err != nil {
			err := it.err
			*it = outcome{err: err}
			if i == 0 && headed {
				return nil, err
			}
		}
	}
	return items, nil
}

// commit writes the transactions in order and answers how many were written.
func (c *Controller) commit(t *term, p *pack) (done int, revision int64, err error) {
	for _, txn := range p.txns {
		rev, err := t.commit(c.stopCtx, txn)
		if err != nil {
			return done, revision, err
		}
		done, revision = done+1, rev
	}
	return done, revision, nil
}

// broken answers a batch that was written in part, or nobody knows how far, and
// tells whether the term can go on. Callers repeat: every command can be.
func (c *Controller) broken(t *term, batch []*request, replies []reply, p *pack, done int, cause error) error {
	if c.stopCtx.Err() != nil {
		cause = ErrClosed
	}
	over := errors.Is(cause, ErrNotController) || errors.Is(cause, ErrClosed)
	var err error
	if !over {
		err = c.take(t)
	}
	for i, r := range batch {
		if replies[i].err == nil {
			replies[i].err = fmt.Errorf("written in part (%d of %d transactions): %w", done, len(p.txns), cause)
			replies[i].unsure = done > 0 || !refusedOutright(cause)
		}
		r.reply <- replies[i]
	}
	if over {
		return cause
	}
	return err
}

// refusedOutright tells whether a transaction certainly did not take effect, and will
// not.
func refusedOutright(err error) bool {
	for _, certain := range []error{errDeposed, errChain, rpctypes.ErrNoSpace, rpctypes.ErrRequestTooLarge} {
		if errors.Is(err, certain) {
			return true
		}
	}
	return false
}
