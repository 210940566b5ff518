package controller

import (
	"context"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// electing is a store in which a leader is elected during the first transactions.
type electing struct {
	clientv3.KV
	left atomic.Int32
}

func (e *electing) Txn(ctx context.Context) clientv3.Txn {
	return &electingTxn{Txn: e.KV.Txn(ctx), e: e}
}

type electingTxn struct {
	clientv3.Txn
	e *electing
}

func (t *electingTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.Txn = t.Txn.If(cs...); return t }
func (t *electingTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }
func (t *electingTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

func (t *electingTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.e.left.Add(-1) >= 0 {
		return nil, rpctypes.ErrLeaderChanged
	}
	return t.Txn.Commit()
}

// All nodes of a cluster were killed and started again, on a machine that was busy; one of
// them ended with "read metadata: etcdserver: leader changed", because etcd elected another
// leader while it looked whether the store is a new one.
func TestStartDuringElection(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	e := &electing{KV: c.etcd.client.KV}
	e.left.Store(2)
	client := clientv3.NewCtxClient(t.Context())
	client.KV = e
	starting := &Controller{o: c.o, codec: c.codec, follower: newFollower(client, c.codec, c.o.Logger, c.o.Clock, c.meters), etcd: &store{client: client}}
	if err := starting.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := starting.Image().ClusterID, c.Image().ClusterID; got != want || e.left.Load() >= 0 {
		t.Errorf("cluster %q, want %q", got, want)
	}
}
