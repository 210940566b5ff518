package kafka

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// The attributes of a batch lie where message sets of formats 0 and 1 have other
// fields: clients that write them were told that a right is missing.
func TestOnlyBatchesAreTransactional(t *testing.T) {
	b := record.Batch(record.Build(record.BuildHeader{ProducerID: 7, Transactional: true}, []record.Record{{Value: []byte("v")}}))
	if !isTransactional(b) {
		t.Error("a transactional batch was not seen")
	}
	const atMagic = 16
	for magic := range byte(2) {
		if b[atMagic] = magic; isTransactional(b) {
			t.Errorf("a message set of format %d was taken for a transactional batch", magic)
		}
	}
}
