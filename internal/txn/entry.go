package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The records are Apache Kafka's own: key version 0, value version 1, which
// brokers since 3.5 can read (KIP-915) and 4.x write. The first two bytes of a
// key say what it is.
const (
	keyVersion   = 0
	valueVersion = 1
)

func tombstone(id string) entry {
	key := kmsg.TxnMetadataKey{Version: keyVersion, TransactionalID: id}
	return entry{key: key.AppendTo(nil)}
}

func (v *values) entry(id string) entry {
	rec := kmsg.NewTxnMetadataValue()
	rec.Version = valueVersion
	rec.ProducerID, rec.ProducerEpoch = v.producerID, v.epoch
	rec.PreviousProducerID, rec.NextProducerID = v.previousID, v.nextID
	rec.TimeoutMillis = int32(v.timeout.Milliseconds())
	rec.State = kmsg.TransactionState(v.state)
	rec.ClientTransactionVersion = int16(v.version)
	rec.LastUpdateTimestamp, rec.StartTimestamp = v.updated.UnixMilli(), -1
	if !v.started.IsZero() {
		rec.StartTimestamp = v.started.UnixMilli()
	}
	if v.state != Empty { // else null, as Kafka has it
		rec.Topics = []kmsg.TxnMetadataValueTopic{}
	}
	for _, tp := range sorted(v.partitions) {
		if n := len(rec.Topics); n == 0 || rec.Topics[n-1].Topic != tp.Topic {
			rec.Topics = append(rec.Topics, kmsg.TxnMetadataValueTopic{Topic: tp.Topic})
		}
		last := &rec.Topics[len(rec.Topics)-1]
		last.Partitions = append(last.Partitions, tp.Partition)
	}
	e := tombstone(id)
	e.value = rec.AppendTo(nil)
	return e
}

// errForeignRecord marks records that this version does not know.
var errForeignRecord = errors.New("record of an unknown version")

// decode reads one record; nil values are a tombstone.
func decode(key, value []byte) (id string, v *values, err error) {
	if len(key) < 2 {
		return "", nil, fmt.Errorf("key of %d bytes", len(key))
	}
	if version := int16(binary.BigEndian.Uint16(key)); version != keyVersion {
		return "", nil, fmt.Errorf("%w: key version %d", errForeignRecord, version)
	}
	var k kmsg.TxnMetadataKey
	if err := k.ReadFrom(key); err != nil {
		return "", nil, fmt.Errorf("key: %w", err)
	}
	if value == nil {
		return k.TransactionalID, nil, nil
	}
	if len(value) < 2 {
		return "", nil, fmt.Errorf("value of %d bytes", len(value))
	}
	if version := int16(binary.BigEndian.Uint16(value)); version < 0 || version > valueVersion {
		return "", nil, fmt.Errorf("%w: value version %d", errForeignRecord, version)
	}
	rec := kmsg.NewTxnMetadataValue()
	if err := rec.ReadFrom(value); err != nil {
		return "", nil, fmt.Errorf("value: %w", err)
	}
	state := State(rec.State)
	if state < 0 || int(state) >= states || rec.ProducerID < 0 || rec.ProducerEpoch < 0 {
		return "", nil, fmt.Errorf("state %d, producer id %d, epoch %d", rec.State, rec.ProducerID, rec.ProducerEpoch)
	}
	v = &values{
		state: state, producerID: rec.ProducerID, previousID: rec.PreviousProducerID, nextID: rec.NextProducerID,
		epoch: rec.ProducerEpoch, lastEpoch: -1, version: int(rec.ClientTransactionVersion),
		timeout: time.Duration(rec.TimeoutMillis) * time.Millisecond, updated: time.UnixMilli(rec.LastUpdateTimestamp),
	}
	if rec.StartTimestamp >= 0 {
		v.started = time.UnixMilli(rec.StartTimestamp)
	}
	for _, t := range rec.Topics {
		for _, p := range t.Partitions {
			if v.partitions == nil {
				v.partitions = map[TopicPartition]struct{}{}
			}
			v.partitions[TopicPartition{t.Topic, p}] = struct{}{}
		}
	}
	return k.TransactionalID, v, v.plausible()
}

// plausible refuses what no coordinator writes, so that a record that a client
// put into the topic cannot break the machine.
func (v *values) plausible() error {
	switch {
	case v.state == Dead, v.state == PrepareEpochFence:
		return fmt.Errorf("state %s, which is never stored", v.state)
	case v.state == Empty && len(v.partitions) > 0:
		return fmt.Errorf("state %s with %d partitions", v.state, len(v.partitions))
	case (v.state == Ongoing || v.state.deciding()) && v.started.IsZero():
		return fmt.Errorf("state %s without a start", v.state)
	case v.nextID >= 0 && !v.state.deciding():
		return fmt.Errorf("state %s with a next producer id", v.state)
	}
	return nil
}
