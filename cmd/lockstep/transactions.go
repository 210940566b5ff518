package main

import (
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kafka"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

func newTransactions(cfg *config.Config, b *broker) (*txn.Coordinator, error) {
	store := txn.NewPartitionStore(b.partitions, b.controller.Image)
	b.markers = kafka.NewMarkerSender(kafka.MarkerSenderOptions{
		NodeID: b.nodeID, Local: kafka.MarkerWriter{Partitions: b.partitions, Groups: b.groups},
		Image: b.controller.Image, Peers: b.peers, Logger: b.logger.With("part", "txn"),
	})
	return txn.New(txn.Options{
		NodeID: b.nodeID, Partitions: store.Partitions, Append: store.Append, Load: store.Load, Alive: b.lease,
		NewProducerID:          txn.NewProducerIDs(b.controller.AllocateProducerIDs).Next,
		WriteMarkers:           b.markers.WriteMarkers,
		Logger:                 b.logger.With("part", "txn"),
		MaxTimeout:             cfg.Duration("transaction.max.timeout.ms"),
		TimeoutCheck:           cfg.Duration("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
		IDExpiration:           cfg.Duration("transactional.id.expiration.ms"),
		ExpiryCheck:            cfg.Duration("transaction.remove.expired.transaction.cleanup.interval.ms"),
		MaxIDs:                 int(cfg.Int("max.transactional.ids")),
		MaxIDsPerPrincipal:     int(cfg.Int("max.transactional.ids.per.principal")),
		TopicPartitions:        int32(cfg.Int("transaction.state.log.num.partitions")),
		TopicStrict:            cfg.ManyNodes() || cfg.IsSet("transaction.state.log.replication.factor"),
		TopicReplicationFactor: int16(cfg.Int("transaction.state.log.replication.factor")),
		TopicMinISR:            int16(cfg.Int("transaction.state.log.min.isr")),
		TopicSegmentBytes:      int32(cfg.Int("transaction.state.log.segment.bytes")),
	})
}
