package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// A log whose index was lost is served at once, while its history (epochs,
// producers, times) is gathered in the background. What needs the history is
// answered until then so that clients go on by themselves:
//
//	produce with a producer id   not leader: every client asks again
//	list offsets, epoch ends     offsets are not available: likewise, after a wait of some
//	                             seconds for list offsets (internal/kafka)
//	fetch, read committed        empty; the last stable offset is not told
//	fetch after another epoch    empty, unless the batch before the offset proves
//	                             that the histories agree
//	delete records               not available, where whole segments would go
//	mirror                       waits (Ready)

// Ready waits until everything about the log is known.
func (p *Partition) Ready(ctx context.Context) error {
	if p.log == nil {
		return p.wrap(ErrStorage)
	}
	if err := p.log.Wait(ctx); err != nil {
		return p.storage(err)
	}
	return nil
}

// historyKnown hears of the end of the log's rebuilding.
func (p *Partition) historyKnown(err error) {
	switch {
	case err == nil:
		p.wake() // read-committed fetches can go on
		p.wakeFollowers()
	case !errors.Is(err, segment.ErrClosed):
		p.fail(err)
	}
}

// notYet is the answer of what needs a history that is not known.
func (p *Partition) notYet(err error) error {
	if errors.Is(err, segment.ErrRebuilding) {
		return p.wrap(fmt.Errorf("%w: %w", ErrOffsetNotAvailable, err))
	}
	return p.storage(err)
}

// startMoved is for a log start that is followed: where segments would go whose history
// is still being gathered, the records stay until the start that is followed moves again.
func (p *Partition) startMoved(err error) error {
	if errors.Is(err, segment.ErrRebuilding) {
		return nil
	}
	return err
}

// follows says whether a reader at offset that read a batch of the given epoch
// last shares our history, as far as the batch in front of the offset tells.
func (p *Partition) follows(offset int64, epoch int32) bool {
	view, err := p.log.Read(offset-1, 1, p.log.EndOffset(), true)
	if err != nil {
		return false
	}
	defer view.Release()
	var head [record.HeaderSize]byte
	if view.Len() < len(head) {
		return false
	}
	if _, err := view.ReadAt(head[:], 0); err != nil {
		return false
	}
	b := record.Batch(head[:])
	return b.BaseOffset() < offset && b.PartitionLeaderEpoch() == epoch
}
