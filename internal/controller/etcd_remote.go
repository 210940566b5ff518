package controller

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
)

// External is an etcd that the operator runs.
type External struct {
	Endpoints          []string    // URLs
	TLS                *tls.Config // nil: none
	Username, Password string
	// Prefix stands before every key, so that several clusters can share one etcd.
	Prefix string
}

// endpointSync is how often a client asks which members there are, so that one
// that was added is known before those that were configured are gone.
const endpointSync = 30 * time.Second

// dialStore reaches an etcd that is not in this process: the other nodes' members
// through their controller listeners, or the operator's.
func dialStore(ctx context.Context, o Options, id *identity) (*store, error) {
	cfg := clientv3.Config{
		DialTimeout: o.RequestTimeout, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.New(&zapBridge{logger: o.Logger.With("component", "etcd")}),
	}
	prefix := ""
	if x := o.External; x != nil {
		cfg.Endpoints, cfg.TLS, cfg.Username, cfg.Password, prefix = x.Endpoints, x.TLS, x.Username, x.Password, x.Prefix
	} else {
		cfg.TLS = id.storeTLS()
		cfg.AutoSyncInterval = endpointSync
		for _, addr := range o.controllers() {
			cfg.Endpoints = append(cfg.Endpoints, "https://"+addr)
		}
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("metadata store at %v: %w", cfg.Endpoints, err)
	}
	if prefix != "" {
		client.KV = namespace.NewKV(client.KV, prefix)
		client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
		client.Lease = namespace.NewLease(client.Lease, prefix)
	}
	// A question now shows what is wrong while somebody looks.
	ctx, cancel := context.WithTimeout(ctx, o.RequestTimeout)
	defer cancel()
	if _, err := client.Get(ctx, keyFormat); err != nil {
		client.Close()
		return nil, fmt.Errorf("metadata store at %v: %w", cfg.Endpoints, err)
	}
	return &store{client: client}, nil
}
