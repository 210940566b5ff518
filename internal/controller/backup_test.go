package controller

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A file is read back as it was written, or not at all: whatever byte of it is
// another one, or missing.
func TestBackupFile(t *testing.T) {
	b := &Backup{ClusterID: "a-cluster", Revision: 77, Taken: time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)}
	b.keys = []write{{"attach/x", []byte{}}, {"cluster", []byte("a-cluster")}, {"topic/y", []byte("\x00\xff\n")}}
	file, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeBackup(file)
	if err != nil || fmt.Sprint(back) != fmt.Sprint(b) || back.ID == "" {
		t.Fatalf("%v, %v\nwant %v", back, err, b)
	}
	for i := range file {
		if i < len(file)-1 { // the last line may lack its end
			if _, err := DecodeBackup(file[:i]); !errors.Is(err, ErrBadBackup) {
				t.Errorf("cut at %d: %v", i, err)
			}
		}
		flipped := slices.Clone(file)
		flipped[i] ^= 1
		if _, err := DecodeBackup(flipped); err == nil {
			t.Errorf("byte %d flipped: taken", i)
		}
	}
	for _, foreign := range []string{"", "{}\n", "PK\x03\x04", `{"lockstep":"something else","version":1}` + "\n"} {
		if _, err := DecodeBackup([]byte(foreign)); !errors.Is(err, ErrBadBackup) {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	newer := strings.Replace(string(file), `"version":1`, `"version":2`, 1)
	if _, err := DecodeBackup([]byte(newer)); err == nil || errors.Is(err, ErrBadBackup) {
		t.Errorf("a newer version: %v", err)
	}
}

// What a restore makes of what a backup says.
func TestRestoredKeys(t *testing.T) {
	mirrored, plain := metadata.TopicID{1}, metadata.TopicID{2}
	part := &metadata.Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 7, PartitionEpoch: 9, ELR: []int32{3}}
	state := func(s, previous metadata.MirrorState) []byte {
		return encodeState(&metadata.MirrorPartition{Mirror: "m", State: s, PreviousState: previous, StateEpoch: 4, LeaderEpoch: 6, ErrorMessage: "why"})
	}
	key := func(dir string, id metadata.TopicID, index int32) string {
		return strings.TrimPrefix(partKey(dir, id, index), keyRoot)
	}
	b := &Backup{keys: []write{
		{"pids", []byte("4000")},
		{"broker/1", []byte("{}")},
		{"restored", []byte("an older one")},
		{"topic/whatever", []byte("as it is")},
		{"attach/" + mirrored.String(), []byte("m")},
		{key(dirPartition, mirrored, 0), encodePartition(part)},
		{key(dirPartition, plain, 0), encodePartition(part)},
		{key(dirState, mirrored, 0), state(metadata.StateMirroring, metadata.StateUnknown)},
		{key(dirState, mirrored, 1), state(metadata.StateFailed, metadata.StateMirroring)},
		{key(dirState, mirrored, 2), state(metadata.StatePreparing, metadata.StateUnknown)},
		{key(dirState, mirrored, 3), state(metadata.StateFailed, metadata.StatePreparing)},
	}}
	got, err := b.restored()
	if err != nil {
		t.Fatal(err)
	}
	find := func(key string) []byte {
		if i := slices.IndexFunc(got, func(w write) bool { return w.key == keyRoot+key }); i >= 0 {
			return got[i].value
		}
		return nil
	}
	for k, want := range map[string]string{"pids": "1099511631776", "broker/1": "", "restored": "", "topic/whatever": "as it is", "attach/" + mirrored.String(): "m.paused"} {
		if v := find(k); string(v) != want {
			t.Errorf("%s: %q, want %q", k, v, want)
		}
	}
	for id, barrier := range map[metadata.TopicID]int32{mirrored: 1 << 20, plain: 0} {
		p, err := decodePartition(find(key(dirPartition, id, 0)))
		want := &metadata.Partition{Replicas: part.Replicas, Leader: -1, LeaderEpoch: 1<<20 + 7, PartitionEpoch: 1<<20 + 9, LastKnownELR: part.Replicas, Barrier: barrier}
		if err != nil || fmt.Sprintf("%+v", p) != fmt.Sprintf("%+v", want) || !p.WaitsForEnds() {
			t.Errorf("%v: %+v, %v\nwant %+v", id, p, err, want)
		}
	}
	for i, want := range []metadata.MirrorState{metadata.StatePaused, metadata.StatePaused, metadata.StateUnknown, metadata.StateUnknown} {
		v := find(key(dirState, mirrored, int32(i)))
		if want == metadata.StateUnknown {
			if v != nil {
				t.Errorf("state %d: %x, want none", i, v)
			}
			continue
		}
		s, err := decodeState(v)
		if err != nil || s.State != want || s.StateEpoch != 5 || s.ErrorMessage != "" {
			t.Errorf("state %d: %+v, %v", i, s, err)
		}
	}
	if e := raised(1<<31 - 1); e != 1<<31-2 {
		t.Errorf("the last epoch becomes %d", e)
	}
}

// TestBackupAndRestore loses all metadata of three controllers. A backup of the
// cluster at work founds it anew, in whichever way its controllers are started; what
// is no empty place, and what is of another cluster, is refused.
func TestBackupAndRestore(t *testing.T) {
	w := newTestCluster(t, 3)
	w.startAll()
	active, other := w.leader()
	epoch := w.broker(other, 1)
	create(t, other, "orders", 300)
	alice := &metadata.ScramCredential{User: "alice", Mechanism: metadata.ScramSHA256, Iterations: 4096, Salt: []byte("salt"), StoredKey: []byte(strings.Repeat("stored..", 4)), ServerKey: []byte(strings.Repeat("server..", 4))}
	if errs := other.AlterScram(t.Context(), []AlterScram{{User: "alice", Puts: []*metadata.ScramCredential{alice}}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	clusterID, was := active.Image().ClusterID, active.Image().Topic("orders")

	b, err := TakeBackup(t.Context(), w.options(2))
	if err != nil {
		t.Fatal(err)
	}
	file, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(file), base64.StdEncoding.EncodeToString([]byte("stored.."))[:10]) || !strings.Contains(string(file), "scram/") {
		t.Error("the backup has a secret in clear, or none")
	}
	create(t, other, "later", 1)
	if _, _, err := Restore(t.Context(), w.options(1), file); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restored into a cluster at work: %v", err)
	}
	for _, id := range w.ids() {
		w.stop(id)
	}
	if _, _, err := Restore(t.Context(), w.options(1), file); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restored over what is there: %v", err)
	}
	lose := func() {
		for _, v := range w.voters {
			if err := os.RemoveAll(filepath.Join(w.dir, fmt.Sprint(v.ID))); err != nil {
				t.Fatal(err)
			}
		}
	}
	lose()
	wrong := w.options(1)
	wrong.Secret = "another secret, as long"
	if _, _, err := Restore(t.Context(), wrong, file); err == nil || !strings.Contains(err.Error(), "cluster.secret") {
		t.Errorf("another secret: %v", err)
	}

	// All controllers have the file, or one of them.
	for _, which := range [][]int32{{1, 2, 3}, {2}} {
		for _, id := range which {
			if _, staged, err := Restore(t.Context(), w.options(id), file); err != nil || !staged {
				t.Fatalf("node %d: %v, %v", id, staged, err)
			}
		}
		w.startAll()
		_, other := w.leader()
		img := other.Image()
		now := img.Topic("orders")
		if img.ClusterID != clusterID || now == nil || now.ID != was.ID || len(now.Partitions) != 300 || img.Topic("later") != nil || img.Restored != b.ID {
			t.Fatalf("restored by %v:\n%s", which, show(img))
		}
		if p := now.Partitions[299]; p.LeaderEpoch < 1<<20 || !p.WaitsForEnds() {
			t.Errorf("a partition is %+v", p)
		}
		if cred := img.Scram("alice", metadata.ScramSHA256); cred == nil || string(cred.StoredKey) != string(alice.StoredKey) {
			t.Errorf("alice is %v", cred)
		}
		if img.Broker(1) != nil {
			t.Error("a broker is registered")
		}
		// A process that has not been restarted is of the cluster that was.
		if _, err := other.RegisterBroker(t.Context(), RegisterBroker{ID: 1, Incarnation: [16]byte{9}, PreviousEpoch: epoch}); !errors.Is(err, ErrOtherMetadata) {
			t.Errorf("a process from before: %v", err)
		}
		if _, err := other.RegisterBroker(t.Context(), RegisterBroker{ID: 1, Incarnation: [16]byte{9}, PreviousEpoch: epoch, Restored: b.ID}); err != nil {
			t.Fatal(err)
		}
		w.broker(other, 2)
		create(t, other, "after", 1)
		for _, id := range w.ids() {
			w.stop(id)
			if _, err := os.Stat(filepath.Join(w.dir, fmt.Sprint(id), stagedFile)); err == nil {
				t.Errorf("node %d keeps the backup", id)
			}
		}
		w.startAll() // an ordinary start
		if _, other := w.leader(); other.Image().Topic("after") == nil {
			t.Error("a restart lost a topic")
		}
		for _, id := range w.ids() {
			w.stop(id)
		}
		lose()
	}

	// Two controllers with two backups found nothing.
	b.Revision++
	another, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for id, f := range map[int32][]byte{1: file, 2: another} {
		if _, _, err := Restore(t.Context(), w.options(id), f); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Restore(t.Context(), w.options(1), another); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("another backup over one that waits: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, 3)
	for _, v := range w.voters {
		o := w.options(v.ID)
		go func() {
			c, err := Open(ctx, o)
			if err == nil {
				err = c.Close()
			}
			errs <- err
		}()
	}
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "another backup") {
		t.Errorf("two backups: %v", err)
	}
	cancel()
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a cluster was founded with two backups")
		}
	}
}

// TestRestoreAlone is a single node without a secret: it is backed up while it is
// stopped, and its key file opens what is restored.
func TestRestoreAlone(t *testing.T) {
	o := testOptions(t, t.TempDir()+"/metadata")
	c := open(t, o)
	register(t, c, 1)
	create(t, c, "orders", 2)
	if _, err := TakeBackup(t.Context(), o); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("of a running one: %v", err)
	}
	closeNow(t, c)
	b, err := TakeBackup(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	file, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := TakeBackup(t.Context(), o); err == nil {
		t.Error("a backup of nothing")
	}
	if _, _, err := Restore(t.Context(), o, file); err != nil {
		t.Fatal(err)
	}
	c = open(t, o)
	if img := c.Image(); img.Topic("orders") == nil || img.Restored != b.ID {
		t.Errorf("it shows\n%s", show(img))
	}
}
