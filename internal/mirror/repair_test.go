package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/segment"
)

// mirrorOf mirrors a topic with n records and returns its bytes.
func (w *world) mirrorOf(src *kfake.Cluster, topic string, n int) []byte {
	w.t.Helper()
	var values []string
	for i := range n {
		values = append(values, fmt.Sprintf("value %d", i))
	}
	produce(w.t, src, topic, 0, values...)
	w.create("m", src)
	w.start("m", topic)
	w.caughtUp(topic, 0, int64(n))
	done := make(chan error, 1)
	w.parts.Get(topic, 0).Log().Flush(func(err error) { done <- err })
	if err := <-done; err != nil {
		w.t.Fatal(err)
	}
	return w.bytesOf(topic, 0)
}

// flipByte damages a segment file in place, as a disk would.
func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x55
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// A reader stumbles over damage in a log that is being mirrored. The partition
// goes offline, the range comes from the source once more, and the bytes are the
// source's again. Nobody does anything for it, and the neighbour never stops.
func TestDamageIsRepairedFromTheSource(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "other"))
	w := newWorld(t, nil)
	produce(t, src, "other", 0, "x")
	before := w.mirrorOf(src, "orders", 20)
	w.start("m", "other")
	w.caughtUp("other", 0, 1)

	p := w.parts.Get("orders", 0)
	log := p.Log()
	flipByte(t, log.Segments()[0].Path, int64(len(before)/2))
	flipByte(t, log.Segments()[0].Path, 16) // the magic of the first batch
	if _, err := p.Read(partition.ReadRequest{Offset: 0, MaxBytes: 100, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1}); !errors.Is(err, partition.ErrStorage) {
		t.Fatalf("damage was served: %v", err)
	}
	w.until("orders is whole", func() bool { return kept(t, w.dir) == 1 && p.Info().Offline == nil })
	w.state("orders", 0, metadata.StateMirroring)
	if after := w.bytesOf("orders", 0); !bytes.Equal(before, after) {
		t.Errorf("%d bytes after the repair, %d before", len(after), len(before))
	}
	if w.parts.Get("other", 0).Info().Offline != nil || w.partition("other", 0).State != metadata.StateMirroring {
		t.Error("the neighbour was touched")
	}
	produce(t, src, "orders", 0, "next")
	w.caughtUp("orders", 0, 21)
}

func kept(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "data", "quarantine", "*", "*.log.*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// A log that is found damaged when the server starts is repaired before it is
// mirrored further; one that is missing as a whole is fetched again.
func TestDamageAtTheStartIsRepaired(t *testing.T) {
	for name, hurt := range map[string]func(t *testing.T, path string){
		"flipped":           func(t *testing.T, path string) { flipByte(t, path, 16) },
		"truncated":         func(t *testing.T, path string) { must(t, os.Truncate(path, 300)) },
		"missing file":      func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"missing directory": func(t *testing.T, path string) { must(t, os.RemoveAll(filepath.Dir(path))) },
	} {
		t.Run(name, func(t *testing.T) {
			src := newSource(t, kfake.SeedTopics(1, "orders"))
			w := newWorld(t, nil)
			before := w.mirrorOf(src, "orders", 20)
			path := w.parts.Get("orders", 0).Log().Segments()[0].Path
			w.m.Close()
			w.closeStorage()
			hurt(t, path)
			// Without the index the file is read again.
			must(t, os.RemoveAll(w.dir+"/data/index"))
			w.openStorage()
			if err := w.ctrl.WaitWatchers(w.ctx); err != nil {
				t.Fatal(err)
			}
			if off := w.parts.Get("orders", 0).Info().Offline; !errors.Is(off, segment.ErrCorrupt) {
				t.Fatalf("offline with %v", off)
			}
			w.startManager(nil)
			w.caughtUp("orders", 0, 20)
			if after := w.bytesOf("orders", 0); !bytes.Equal(before, after) {
				t.Errorf("%d bytes after the repair, %d before", len(after), len(before))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What the source does not have any more cannot be repaired from it: the
// partition stays offline, and describe says why and what to do.
func TestDamageThatTheSourceDoesNotHave(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.mirrorOf(src, "orders", 20)
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	must(t, err)
	defer cl.Close()
	offsets := make(kadm.Offsets)
	offsets.AddOffset("orders", 0, 10, -1)
	if _, err := kadm.NewClient(cl).DeleteRecords(context.Background(), offsets); err != nil {
		t.Fatal(err)
	}
	p := w.parts.Get("orders", 0)
	flipByte(t, p.Log().Segments()[0].Path, 16)
	_, _ = p.Read(partition.ReadRequest{Offset: 0, MaxBytes: 100, AtLeastOne: true, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1})
	d := w.failed("orders", 0, "does not have the records")
	for _, want := range []string{"00000000000000000000.log is damaged at position 0, offset 0", "lockstep repair --dir " + w.dir + "/data --log "} {
		if !strings.Contains(d.ErrorMessage, want) {
			t.Errorf("%q is not in %q", want, d.ErrorMessage)
		}
	}
	if p.Info().Offline == nil || kept(t, w.dir) != 0 {
		t.Error("something was changed")
	}
}
