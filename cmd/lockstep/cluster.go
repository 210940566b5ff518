package main

import (
	"path/filepath"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/peer"
	"github.com/lockstep-kafka/lockstep/internal/replica"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// newPeers makes the connections to other brokers, over the listener that brokers use
// among themselves.
func newPeers(cfg *config.Config, b *broker) (*peer.Pool, error) {
	listeners, err := cfg.Listeners()
	if err != nil {
		return nil, err
	}
	ib, err := cfg.InterBroker(listeners)
	if err != nil {
		return nil, err
	}
	return peer.New(peer.Options{
		Listener: ib.Listener, Image: b.controller.Image, Clock: clock.System(),
		Dialer: func() (*wire.Dialer, error) {
			if ib.Incomplete != nil {
				return nil, ib.Incomplete
			}
			client, err := clientconfig.Parse(ib.Client, clientconfig.AllowUnknown())
			if err != nil {
				return nil, err
			}
			client.RequestTimeout = cfg.Duration("replica.socket.timeout.ms")
			return client.Dialer("broker-" + strconv.Itoa(int(b.nodeID))), nil
		},
	}), nil
}

// newReplicas makes what keeps this broker's replicas equal to their leaders'.
func newReplicas(cfg *config.Config, b *broker) *replica.Manager {
	return replica.NewManager(replica.Options{
		NodeID: b.nodeID, Partitions: b.partitions, Dial: b.peers.Dial, Ask: b.peers.Request, BrokerEpoch: b.brokerEpoch,
		Fetchers: int(cfg.Int("num.replica.fetchers")), MaxWait: cfg.Duration("replica.fetch.wait.max.ms"),
		MinBytes: int32(cfg.Int("replica.fetch.min.bytes")), MaxBytes: int32(cfg.Int("replica.fetch.response.max.bytes")),
		PartitionMaxBytes: int32(cfg.Int("replica.fetch.max.bytes")), Backoff: cfg.Duration("replica.fetch.backoff.ms"),
		Timeout: cfg.Duration("replica.socket.timeout.ms"),
		Clock:   clock.System(), Logger: b.logger.With("part", "replica"),
	})
}

// brokerEpoch is that of the registration, -1 before there is one.
func (b *broker) brokerEpoch() int64 {
	if m := b.member.Load(); m != nil {
		return m.Epoch()
	}
	return -1
}

// controllerOptions are the node's part in the cluster's metadata.
func controllerOptions(cfg *config.Config, b *broker) (controller.Options, error) {
	o := controller.Options{
		Dir: filepath.Join(b.logDirs.metadata, "metadata"), ClusterID: b.logDirs.clusterID(),
		DefaultPartitions:        int32(cfg.Int("num.partitions")),
		DefaultReplicationFactor: int16(cfg.Int("default.replication.factor")),
		DefaultMinISR:            int32(cfg.Int("min.insync.replicas")),
		DefaultUncleanElection:   cfg.Bool("unclean.leader.election.enable"),
		Logger:                   b.logger.With("part", "controller"),
	}
	if err := cfg.Quorum(&o); err != nil {
		return o, err
	}
	return o, nil
}
