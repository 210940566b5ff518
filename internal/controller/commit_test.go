package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// meddler is a store whose transactions are in the hands of commit.
type meddler struct {
	clientv3.KV
	commit func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error)
}

type meddledTxn struct {
	clientv3.Txn
	ctx context.Context
	m   *meddler
}

func (m *meddler) Txn(ctx context.Context) clientv3.Txn {
	return &meddledTxn{m.KV.Txn(context.WithoutCancel(ctx)), ctx, m} // it may be sent when nobody waits any more
}

func (t *meddledTxn) If(cs ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(cs...); return t }
func (t *meddledTxn) Then(os ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(os...); return t }
func (t *meddledTxn) Else(os ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(os...); return t }

func (t *meddledTxn) Commit() (*clientv3.TxnResponse, error) { return t.m.commit(t.ctx, t.Txn) }

// meddled is the term of a controller beside its own, whose transactions go through a
// meddler.
func meddled(t *testing.T, c *Controller) (*term, *meddler) {
	t.Helper()
	client := clientv3.NewCtxClient(t.Context())
	m := &meddler{KV: c.etcd.client.KV}
	client.KV = m
	keys, err := c.etcd.client.Get(t.Context(), keyElection+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	at := &term{client: client, timeout: time.Minute, clock: clock.System(), meters: c.meters, tries: 100,
		key: string(keys.Kvs[0].Key), rev: keys.Kvs[0].CreateRevision}
	if err := at.syncChain(t.Context()); err != nil {
		t.Fatal(err)
	}
	return at, m
}

func producerIDs(next string) []write { return []write{{keyProducerIDs, []byte(next)}} }

func storedProducerIDs(t *testing.T, c *Controller) string {
	t.Helper()
	got, err := c.etcd.client.Get(t.Context(), keyProducerIDs)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

// TestPassesQuota: etcd carries a transaction out with which it passes its quota, and
// says that there was no room. A command is not reported as refused whose transaction
// was carried out, and the next one is decided knowing of it. One that came too late,
// and was answered so as well, is refused.
func TestPassesQuota(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)
	at, m := meddled(t, c)
	left := 1
	m.commit = func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		resp, err := txn.Commit()
		if err == nil && left > 0 {
			left--
			return nil, rpctypes.ErrNoSpace
		}
		return resp, err
	}
	rev, err := at.commit(t.Context(), producerIDs("7"))
	if err != nil || rev <= 0 || at.chain != rev {
		t.Errorf("revision %d, chain at %d, %v", rev, at.chain, err)
	}
	if _, err := at.commit(t.Context(), producerIDs("8")); err != nil {
		t.Errorf("the next one: %v", err)
	}
	late := *at
	if _, err := at.commit(t.Context(), producerIDs("9")); err != nil {
		t.Error(err)
	}
	left, late.tries = 1, 200
	if _, err := late.commit(t.Context(), producerIDs("1")); !errors.Is(err, ErrStoreFull) {
		t.Errorf("one that came too late: %v", err)
	}
	if got := storedProducerIDs(t, c); got != "9" {
		t.Errorf("stored is %q", got)
	}
}

// TestLeaderOfEtcdDies loses what was proposed to a leader of etcd that died: nobody is
// told. A leader of 1 500 partitions was killed that led etcd too, and its successors
// waited two seconds for the transaction that made them leaders. Now it is asked after
// when another member leads, and sent again if it is not there; whatever comes of the
// first one, the transaction takes effect once, and what follows it is not overtaken.
func TestLeaderOfEtcdDies(t *testing.T) {
	type commit = func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error)
	send := func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) { return txn.Commit() }
	for _, c := range []struct {
		name   string
		tries  func(t *testing.T, c *Controller) []commit // what becomes of each; those after them are sent
		want   error
		stored string
	}{
		{"it is lost", func(*testing.T, *Controller) []commit { return []commit{lost, send} }, nil, "7"},
		{"twice", func(*testing.T, *Controller) []commit { return []commit{lost, lost, send} }, nil, "7"},
		{"every time", func(*testing.T, *Controller) []commit { return []commit{lost, lost, lost, lost, lost, send} }, errNewLeader, ""},
		{"only the answer is lost", func(t *testing.T, _ *Controller) []commit {
			return []commit{func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				sent(t, txn, true)
				return lost(ctx, txn)
			}}
		}, nil, "7"},
		{"the first comes before the second", func(t *testing.T, _ *Controller) []commit {
			var first clientv3.Txn
			return []commit{
				func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					first = txn
					return lost(ctx, txn)
				},
				func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					sent(t, first, true)
					return txn.Commit()
				},
			}
		}, nil, "7"},
		{"the first comes after the second", func(t *testing.T, _ *Controller) []commit {
			var first clientv3.Txn
			return []commit{
				func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					first = txn
					return lost(ctx, txn)
				},
				func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					resp, err := txn.Commit()
					sent(t, first, false)
					return resp, err
				},
			}
		}, nil, "7"},
		{"another controller writes in between", func(t *testing.T, c *Controller) []commit {
			return []commit{func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				create(t, c, "other", 1)
				return lost(ctx, txn)
			}}
		}, errChain, ""},
		{"the office is lost before the second", func(t *testing.T, c *Controller) []commit {
			return []commit{lost, func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				if _, err := c.etcd.client.Delete(t.Context(), keyElection+"/", clientv3.WithPrefix()); err != nil {
					t.Error(err)
				}
				return txn.Commit()
			}}
		}, errMaybeDeposed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl := open(t, testOptions(t, t.TempDir()))
			register(t, ctl, 1)
			at, m := meddled(t, ctl)
			tries := c.tries(t, ctl)
			m.commit = func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				if len(tries) == 0 {
					return txn.Commit()
				}
				next := tries[0]
				tries = tries[1:]
				return next(ctx, txn)
			}
			another := make(chan struct{})
			close(another) // there is a new one each time
			at.leaders = func() <-chan struct{} { return another }
			before := at.chain
			revision, err := at.commit(t.Context(), producerIDs("7"))
			if !errors.Is(err, c.want) || err == nil && (revision <= before || at.chain != revision) {
				t.Errorf("revision %d, chain %d, was %d: %v", revision, at.chain, before, err)
			}
			if got := storedProducerIDs(t, ctl); got != c.stored {
				t.Errorf("stored is %q", got)
			}
			if c.want == errMaybeDeposed && refusedOutright(err) {
				t.Error("the caller is told that nothing was written, which nobody knows")
			}
			if err == nil {
				if _, err := at.commit(t.Context(), producerIDs("8")); err != nil {
					t.Errorf("the next one: %v", err)
				}
			}
		})
	}
}

// lost is a transaction of which nobody hears again.
func lost(ctx context.Context, _ clientv3.Txn) (*clientv3.TxnResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// sent is one that arrives, and takes effect or not.
func sent(t *testing.T, txn clientv3.Txn, effect bool) {
	t.Helper()
	if resp, err := txn.Commit(); err != nil || resp.Succeeded != effect {
		t.Errorf("it was sent: %+v, %v", resp, err)
	}
}
