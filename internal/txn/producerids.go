package txn

import (
	"context"
	"sync"
)

// producerIDBlock is Kafka's: 1 000 ids per write to the metadata.
const producerIDBlock = 1000

// ProducerIDs hands out producer ids that nobody else has, block by block; what
// is left of a block at a restart is never used.
type ProducerIDs struct {
	allocate func(ctx context.Context, n int32) (first int64, err error)

	mu        sync.Mutex // held across allocate: who waits needs its result
	free, end int64      // [free, end) are ours to give
}

// NewProducerIDs takes its blocks from the controller's allocate.
func NewProducerIDs(allocate func(ctx context.Context, n int32) (first int64, err error)) *ProducerIDs {
	return &ProducerIDs{allocate: allocate}
}

// Next gives one id.
func (p *ProducerIDs) Next(ctx context.Context) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == p.end {
		first, err := p.allocate(ctx, producerIDBlock)
		if err != nil {
			return -1, err
		}
		p.free, p.end = first, first+producerIDBlock
	}
	id := p.free
	p.free++
	return id, nil
}
