package main

import (
	"path/filepath"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/peer"
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
	return o, cfg.Quorum(&o)
}
