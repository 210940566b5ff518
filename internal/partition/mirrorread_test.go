package partition

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A consumer had read what a failback cuts, and asked on between the cut and the epoch
// that follows it: told that its offset is out of range it began anew, or skipped what the
// source wrote there. It is told that its epoch has ended, and asks where the histories
// part; in the new epoch, and of an old client that tells no epoch, the offset is what it is.
func TestReadBehindCut(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) { t.MirrorName = "m" })
	for range 2 {
		if _, err := p.MirrorAppend(3, batchAt(p.Info().LogEnd, 1, 3)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(at int64, epoch int32) error {
		_, err := p.Read(ReadRequest{Offset: at, CurrentLeaderEpoch: epoch, LastFetchedEpoch: -1, MaxBytes: 1})
		return err
	}
	if err := read(7, 3); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("behind a log that nobody cut: %v", err)
	}
	if cut, err := p.Truncate(3, 3); err != nil || cut.Offsets != 3 {
		t.Fatal(cut, err)
	}
	if err := read(6, 3); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("in the epoch of the cut: %v", err)
	}
	if err := read(3, 3); err != nil {
		t.Errorf("who has read nothing of it: %v", err)
	}
	if err := read(6, -1); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("without an epoch: %v", err)
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].LeaderEpoch++ })
	if err := read(6, 3); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("in the epoch before: %v", err)
	}
	if err := read(6, 4); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("in the epoch after: %v", err)
	}
}
