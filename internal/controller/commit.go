package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A member of etcd that dies as its leader takes along what was proposed to it, and who
// proposed is told nothing: a controller that fences the brokers of a dead node would
// wait for its timeout, with all of them unwritable. So when another member leads, the
// transaction under way is asked after, and sent again if it is not there. The first may
// still come late; like all that are late, the chain refuses it then, or the second.

// leaderTries bounds the leaders of etcd that one transaction lives through.
const leaderTries = 5

// errNewLeader ends the wait for a transaction of which nobody may know any more.
var errNewLeader = errors.New("another member leads etcd")

// errMaybeDeposed is errDeposed where an earlier try of the same transaction may have
// taken effect before that.
var errMaybeDeposed = fmt.Errorf("%w: the office was lost after a transaction of unknown fate", ErrNotController)

// commit writes one transaction. After an error other than errDeposed it may or
// may not have taken effect: syncChain, and wait for the image, before the next.
func (t *term) commit(ctx context.Context, writes []write) (revision int64, err error) {
	var links []string
	for {
		t.tries++
		links = append(links, fmt.Sprintf("%s/%d", t.key, t.tries))
		revision, err := t.try(ctx, writes, links)
		if !errors.Is(err, errNewLeader) {
			return revision, err
		}
		switch revision, was, ask := t.askFate(ctx, links); {
		case ask != nil:
			return 0, fmt.Errorf("write metadata: %w: whether it took effect: %w", err, ask)
		case was == fateDone:
			return revision, nil
		case was == fateOvertaken:
			return 0, errChain
		case len(links) == leaderTries:
			return 0, err
		}
	}
}

// try sends a transaction, as the last of links. errNewLeader: nobody answered, and
// etcd has another leader since.
func (t *term) try(ctx context.Context, writes []write, links []string) (revision int64, err error) {
	ctx, cancel := untilNewLeader(ctx, t.timeout, t.leaders)
	defer cancel()
	ops := make([]clientv3.Op, 0, len(writes)+1)
	for _, w := range writes {
		if w.value == nil {
			ops = append(ops, clientv3.OpDelete(w.key))
		} else {
			ops = append(ops, clientv3.OpPut(w.key, string(w.value)))
		}
	}
	ops = append(ops, clientv3.OpPut(keyChain, links[len(links)-1]))
	began := t.clock.Now()
	resp, err := t.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.rev),
			clientv3.Compare(clientv3.ModRevision(keyChain), "=", t.chain)).
		Then(ops...).
		Else(clientv3.OpGet(t.key), clientv3.OpGet(keyChain)).
		Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return t.unlessWritten(ctx, links, err)
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errNewLeader) {
			err = fmt.Errorf("%w: %w", errNewLeader, err)
		}
		return 0, fmt.Errorf("write metadata: %w", err)
	}
	t.meters.commit.Update(t.clock.Now().Sub(began).Seconds())
	if resp.Succeeded {
		return t.wrote(resp.Header.Revision), nil
	}
	revision, was := t.fateOf(resp.Responses[1].GetResponseRange().Kvs, links)
	if was == fateDone {
		return t.wrote(revision), nil // by an earlier try
	}
	t.meters.refused.Inc()
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) > 0 && kvs[0].CreateRevision == t.rev:
		return 0, errChain
	case len(links) > 1:
		return 0, errMaybeDeposed
	}
	return 0, errDeposed
}

// wrote notes that a transaction took effect.
func (t *term) wrote(revision int64) int64 {
	t.meters.commits.Inc()
	t.chain = revision
	return revision
}

// untilNewLeader is a context for one proposal to etcd: it ends with errNewLeader when
// another member leads, if leaders is not nil.
func untilNewLeader(ctx context.Context, timeout time.Duration, leaders func() <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeout(ctx, timeout)
	if leaders == nil {
		return ctx, end
	}
	ctx, cancel := context.WithCancelCause(ctx)
	changed := leaders()
	go func() {
		select {
		case <-changed:
			cancel(errNewLeader)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); end() }
}

// fate is what became of a transaction.
type fate int8

const (
	fateOpen      fate = iota // not there, and it may still come
	fateDone                  // it took effect
	fateOvertaken             // another one did, and it cannot any more
)

// fateOf tells what became of a transaction that was sent under the given links, by the
// chain key as it is.
func (t *term) fateOf(chain []*mvccpb.KeyValue, links []string) (revision int64, was fate) {
	if len(chain) == 0 {
		if t.chain == 0 {
			return 0, fateOpen
		}
		return 0, fateOvertaken
	}
	at := chain[0]
	switch {
	case slices.Contains(links, string(at.Value)):
		return at.ModRevision, fateDone
	case at.ModRevision == t.chain:
		return 0, fateOpen
	}
	return 0, fateOvertaken
}

// askFate reads what became of a transaction. The read is linearizable: the new leader
// has all that the one before it had committed.
func (t *term) askFate(ctx context.Context, links []string) (revision int64, was fate, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	resp, err := t.client.Get(ctx, keyChain)
	if err != nil {
		return 0, fateOpen, err
	}
	if revision, was = t.fateOf(resp.Kvs, links); was == fateDone {
		t.wrote(revision)
	}
	return revision, was, nil
}

// unlessWritten looks whether a transaction took effect that was answered with refusal,
// for want of space. The one with which a store passes its quota is carried out, and
// answered so.
func (t *term) unlessWritten(ctx context.Context, links []string, refusal error) (revision int64, err error) {
	revision, was, err := t.askFate(ctx, links)
	switch {
	case err != nil: // not one that says for certain that nothing was written
		return 0, fmt.Errorf("write metadata: %v: whether it took effect: %w", refusal, err)
	case was == fateDone:
		return revision, nil
	case len(links) > 1: // an earlier try may come yet
		return 0, fmt.Errorf("write metadata: %w: %v", ErrStoreFull, refusal)
	}
	return 0, fmt.Errorf("write metadata: %w: %w", ErrStoreFull, refusal)
}
