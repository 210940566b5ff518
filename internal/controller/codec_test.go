package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func testCodec(t testing.TB) codec {
	t.Helper()
	s, err := openSealer(filepath.Join(t.TempDir(), "cluster.key"), strings.NewReader(strings.Repeat("0123456789abcdef", 4096)), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return codec{s}
}

func genID() *rapid.Generator[metadata.TopicID] {
	return rapid.Custom(func(t *rapid.T) (id metadata.TopicID) {
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		return id
	})
}

// someIDs draws replicas, nil for none.
func someIDs(t *rapid.T, label string) []int32 {
	if ids := rapid.SliceOfN(rapid.Int32(), 0, 3).Draw(t, label); len(ids) > 0 {
		return ids
	}
	return nil
}

// genChange draws any change with any content that can be stored.
func genChange() *rapid.Generator[Change] {
	return rapid.Custom(func(t *rapid.T) Change {
		id := genID().Draw(t, "id")
		index := rapid.Int32Min(0).Draw(t, "index")
		text := rapid.StringMatching(`[a-zA-Z0-9._ -]{0,40}`)
		configs := rapid.MapOfN(text, text, 1, 3)
		state := rapid.SampledFrom(metadata.MirrorStates())
		switch rapid.IntRange(0, 20).Draw(t, "kind") {
		case 0:
			return putTopic{id, "t" + text.Draw(t, "name"), rapid.Bool().Draw(t, "internal"), rapid.Int32Min(1).Draw(t, "n"), configs.Draw(t, "configs"), rapid.Int32Min(0).Draw(t, "life")}
		case 1:
			return deleteTopic{id}
		case 2:
			return setAttachment{id, text.Draw(t, "value"), 77}
		case 3:
			return deleteAttachment{id}
		case 4:
			return putPartition{ID: id, Partition: &metadata.Partition{Index: index,
				Replicas: rapid.SliceOf(rapid.Int32()).Draw(t, "replicas"), ISR: rapid.SliceOf(rapid.Int32()).Draw(t, "isr"),
				Leader: rapid.Int32().Draw(t, "leader"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"), PartitionEpoch: rapid.Int32().Draw(t, "pe"),
				AddingReplicas: someIDs(t, "adding"), RemovingReplicas: someIDs(t, "removing"), ELR: someIDs(t, "elr"), LastKnownELR: someIDs(t, "last elr")}}
		case 5:
			return deletePartition{id, index}
		case 6:
			return putState{id, index, &metadata.MirrorPartition{Mirror: text.Draw(t, "mirror"), State: state.Draw(t, "state"),
				StateEpoch: rapid.Int32().Draw(t, "se"), LeaderEpoch: rapid.Int32().Draw(t, "le"), HasLME: rapid.Bool().Draw(t, "has"),
				LME: rapid.Int32().Draw(t, "lme"), LMO: rapid.Int64().Draw(t, "lmo"), ErrorMessage: rapid.String().Draw(t, "error"),
				RetryAttempt: rapid.Int16().Draw(t, "retry"), PreviousState: state.Draw(t, "previous")}}
		case 7:
			return deleteState{id, index}
		case 8:
			return putMirror{&metadata.Mirror{Name: "m" + text.Draw(t, "name"), Configs: map[string]string{
				"bootstrap.servers": text.Draw(t, "servers"), "sasl.jaas.config": rapid.String().Draw(t, "secret")}}}
		case 9:
			return deleteMirror{"m" + text.Draw(t, "name")}
		case 10:
			return putBroker{&metadata.Broker{ID: index, Epoch: rapid.Int64().Draw(t, "epoch"), Incarnation: id,
				Rack: text.Draw(t, "rack"), Endpoints: []metadata.Endpoint{{Name: "A", Host: "h", Port: 1, Protocol: "SSL"}}, Fenced: rapid.Bool().Draw(t, "fenced"),
				Durability: text.Draw(t, "durability"), ControlledShutdown: rapid.Bool().Draw(t, "stopping")}}
		case 18:
			return deleteBroker{index}
		case 11:
			return setBrokerConfigs{rapid.Int32().Draw(t, "broker"), configs.Draw(t, "configs")}
		case 19:
			return setGroupConfigs{"g/" + rapid.String().Draw(t, "group"), configs.Draw(t, "configs")}
		case 12:
			m := rapid.SampledFrom(metadata.ScramMechanisms()).Draw(t, "mechanism")
			key := func(name string) []byte { return rapid.SliceOfN(rapid.Byte(), m.Size(), m.Size()).Draw(t, name) }
			return putScram{&metadata.ScramCredential{User: "u" + rapid.String().Draw(t, "user"), Mechanism: m, Iterations: rapid.Int32().Draw(t, "iterations"),
				Salt: rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "salt"), StoredKey: key("stored"), ServerKey: key("server")}}
		case 13:
			return deleteScram{"u" + rapid.String().Draw(t, "user"), rapid.SampledFrom(metadata.ScramMechanisms()).Draw(t, "mechanism")}
		case 16, 17:
			name := func(label string) metadata.QuotaName {
				switch rapid.IntRange(0, 2).Draw(t, label) {
				case 0:
					return metadata.QuotaName{Set: true, Default: true}
				}
				return metadata.QuotaName{Set: true, Name: rapid.StringN(0, 40, 200).Draw(t, label+" name")}
			}
			c := setQuotas{Entity: metadata.QuotaEntity{User: name("user"), ClientID: name("client")}}
			if rapid.Bool().Draw(t, "ip") {
				c.Entity = metadata.QuotaEntity{IP: name("ip")}
			}
			if rapid.Bool().Draw(t, "some") {
				c.Quotas = map[string]float64{metadata.QuotaFetch: rapid.Float64Range(1e-3, 1e18).Draw(t, "rate")}
			}
			return c
		case 14, 15:
			a := metadata.ACL{
				ResourceType: metadata.ACLResourceType(rapid.SampledFrom([]int8{2, 3, 5, 6, 7, 8}).Draw(t, "type")),
				Pattern:      metadata.ACLPatternType(rapid.Int8Range(3, 4).Draw(t, "pattern")),
				Operation:    metadata.ACLOperation(rapid.Int8Range(2, 15).Draw(t, "operation")),
				Permission:   metadata.ACLPermission(rapid.Int8Range(2, 3).Draw(t, "permission")),
				ResourceName: "n" + rapid.StringN(0, 40, 200).Draw(t, "resource"), Principal: "User:p" + rapid.StringN(0, 40, 200).Draw(t, "principal"),
				Host: "h" + rapid.StringN(0, 40, 200).Draw(t, "host"),
			}
			if rapid.Bool().Draw(t, "deleted") {
				return deleteACL{a}
			}
			var sources []metadata.ACLSource
			for i := range rapid.IntRange(0, 2).Draw(t, "sources") {
				sources = append(sources, metadata.ACLSource{Mirror: fmt.Sprint("m", i), Clusters: []string{"c" + rapid.StringN(0, 10, 40).Draw(t, "cluster")}})
			}
			return putACL{a, sources}
		}
		if rapid.Bool().Draw(t, "lives") {
			return setLives{metadata.Lives{LeaderEpoch: rapid.Int32Min(0).Draw(t, "epoch"), Barrier: rapid.Int32Min(0).Draw(t, "barrier")}}
		}
		return setProducerIDs{rapid.Int64Min(0).Draw(t, "pid")}
	})
}

// TestCodecRoundTrip holds that what is written is what is read.
func TestCodecRoundTrip(t *testing.T) {
	c := testCodec(t)
	rapid.Check(t, func(t *rapid.T) {
		want := genChange().Draw(t, "change")
		w, err := c.encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.decode(w.key, w.value, 77)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := want.(putPartition); ok {
			p.Revision = 77
			want = p
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("wrote %+v, read %+v", want, got)
		}
	})
}

// What we did not write is refused, and the error names the key. MIR-347: so is a mirror's
// state in the form of a later version: it is not taken for another state.
func TestCodecRefuses(t *testing.T) {
	c := testCodec(t)
	id := testID(5).String()
	for _, w := range []write{
		{"lockstep/format", []byte("2")},
		{"lockstep/format", nil},
		{"lockstep/nonsense", []byte("x")},
		{"lockstep/nonsense/x", []byte("x")},
		{"other", []byte("x")},
		{"lockstep/pids", []byte("-1")},
		{"lockstep/acl/2/3/3/3/b3JkZXJz/VXNlcjph", []byte{1}},       // a part is missing
		{"lockstep/acl/2/3/3/3/b3JkZXJz/VXNlcjph/Kg", []byte{2}},    // a newer version
		{"lockstep/acl/2/3/3/3/b3JkZXJz/VXNlcjph/Kg", []byte{1, 1}}, // one byte too many
		{"lockstep/acl/9/3/3/3/b3JkZXJz/VXNlcjph/Kg", []byte{1}},    // a resource of tomorrow
		{"lockstep/acl/2/3/3/300/b3JkZXJz/VXNlcjph/Kg", []byte{1}},
		{"lockstep/acl/2/3/3/3/b3JkZXJz/VXNlcjph/K!", nil},
		{"lockstep/topic/short", []byte(`{"v":1,"name":"a","partitions":1}`)},
		{"lockstep/topic/" + id, []byte(`{"v":1,"name":"a","partitions":0}`)},
		{"lockstep/topic/" + id, []byte(`{"v":1,"name":"a","partitions":1,"later":true}`)},
		{"lockstep/topic/" + id, []byte(`{`)},
		{"lockstep/part/" + id, []byte{1}},
		{"lockstep/part/" + id + "/-1", []byte{1}},
		{"lockstep/part/" + id + "/x", nil},
		{"lockstep/part/" + id + "/0", []byte{1}},
		{"lockstep/part/" + id + "/0", []byte{2, 0, 0, 0, 0, 0}}, // a newer version
		{"lockstep/part/" + id + "/0", []byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f}},
		{"lockstep/part/" + id + "/0", []byte{1, 0, 0, 0, 0, 0, 0}},                      // one byte too many
		{"lockstep/state/" + id + "/0", []byte{2, 0, 3, 0xff, 2, 4, 6, 8, 0, 1, 'm', 0}}, // a newer version
		{"lockstep/state/" + id + "/0", []byte{1, 2, 3, 0xff, 0, 0, 0, 0, 0, 0, 0}},
		{"lockstep/state/" + id + "/0", []byte{1, 0, 9, 0xff, 0, 0, 0, 0, 0, 0, 0}},
		{"lockstep/broker/x", []byte("{}")},
		{"lockstep/broker/1", []byte(`{"later":1}`)},
		{"lockstep/scram/SCRAM-SHA-1/a", []byte("{}")},
		{"lockstep/scram/SCRAM-SHA-256/", nil},
		{"lockstep/scram/SCRAM-SHA-256/%zz", nil},
		{"lockstep/scram/SCRAM-SHA-256/a", []byte(`{"later":1}`)},
	} {
		if ch, err := c.decode(w.key, w.value, 1); err == nil {
			t.Errorf("%s = %q was read as %+v", w.key, w.value, ch)
		} else if !strings.Contains(err.Error(), w.key) {
			t.Errorf("%s: the error does not name the key: %v", w.key, err)
		}
	}
	for _, key := range []string{"lockstep/chain", "lockstep/election/7"} {
		if ch, err := c.decode(key, []byte("x"), 1); ch != nil || err != nil {
			t.Errorf("%s: %v, %v", key, ch, err)
		}
	}
}

// FuzzDecode: whatever stands in the store, decode answers and does not panic, and
// what it accepts it can write again.
func FuzzDecode(f *testing.F) {
	id := testID(5).String()
	for _, key := range []string{"lockstep/topic/" + id, "lockstep/part/" + id + "/0", "lockstep/state/" + id + "/0", "lockstep/mirror/m", "lockstep/broker/1"} {
		f.Add(key, []byte{1, 0, 3, 0xff, 2, 4, 6, 8, 0, 1, 'm', 0})
		f.Add(key, []byte(`{"v":1,"name":"a","partitions":1,"configs":{"sasl.jaas.config":"sealed:1:00:00"}}`))
	}
	c := testCodec(f)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		ch, err := c.decode(key, value, 1)
		if err != nil || ch == nil {
			return
		}
		w, err := c.encode(ch)
		if err != nil {
			t.Fatalf("read %+v, but cannot write it: %v", ch, err)
		}
		if again, err := c.decode(w.key, present(w.value), 1); value != nil && (err != nil || again == nil) {
			t.Fatalf("%+v does not survive: %v", ch, err)
		}
	})
}

func TestClipMessage(t *testing.T) {
	long := strings.Repeat("ä", maxErrorMessage)
	for _, s := range []string{"", "short", long, "x" + long, "\xff bad"} {
		got := clipMessage(s)
		if len(got) > maxErrorMessage || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
		}
	}
	if clipMessage("short") != "short" {
		t.Error("a short message changed")
	}
}

func TestSealer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "cluster.key")
	var logged strings.Builder
	openKey := func(seed string) *sealer {
		t.Helper()
		s, err := openSealer(file, strings.NewReader(strings.Repeat(seed, 200)), slog.New(slog.NewTextHandler(&logged, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := openKey("one")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	const canary = "canary-51d2"
	m := &metadata.Mirror{Name: "m", Configs: map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": canary, "ssl.key.password": ""}}
	stored, err := s.sealMirror(m)
	if err != nil || strings.Contains(fmt.Sprint(stored), canary) || stored["bootstrap.servers"] != "a:1" {
		t.Fatalf("stored %v, %v", stored, err)
	}
	if got := openKey("two").openMirror("m", stored); !reflect.DeepEqual(got, m) { // the file wins over the seed
		t.Errorf("opened %v, want %v", got.Configs, m.Configs)
	}

	// Moved to another mirror or another config, or damaged, a secret does not open.
	if got := s.openMirror("n", stored); len(got.Unopened) != 2 {
		t.Errorf("opened under another mirror: %v", got)
	}
	damaged := strings.Replace(stored["sasl.jaas.config"], ":1:", ":1:x", 1)
	if got := s.openMirror("m", map[string]string{"sasl.jaas.config": damaged}); len(got.Unopened) != 1 {
		t.Errorf("opened in spite of damage: %v", got)
	}

	// With another key the mirror is there without its secrets, says so, and
	// writing it again does not lose them.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	other := openKey("three")
	locked := other.openMirror("m", stored)
	if _, ok := locked.Configs["sasl.jaas.config"]; ok || len(locked.Unopened) != 2 || !strings.Contains(logged.String(), file) {
		t.Fatalf("%v; logged %s", locked, &logged)
	}
	if again, err := other.sealMirror(locked); err != nil || !reflect.DeepEqual(again, stored) {
		t.Errorf("stored again: %v, %v", again, err)
	}
	if strings.Contains(logged.String(), canary) {
		t.Error("the secret was logged")
	}

	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openSealer(file, strings.NewReader(""), slog.Default()); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("a key file that others can read: %v", err)
	}
}

func TestPack(t *testing.T) {
	keys := 0
	group := func(n, size int) (g []write) {
		for range n {
			keys++
			g = append(g, write{key: fmt.Sprint("k", keys), value: make([]byte, size)})
		}
		return g
	}
	same := write{key: "same"}
	for _, c := range []struct {
		name   string
		groups [][]write
		want   []int // operations per transaction, without the chain's
	}{
		{"small ones share", [][]write{group(1, 10), group(2, 10), group(3, 10)}, []int{6}},
		{"one that does not fit goes to the next", [][]write{group(100, 10), group(100, 10)}, []int{100, 100}},
		{"one that fits nowhere is split, and shares its last", [][]write{group(300, 10), group(50, 10)}, []int{127, 127, 96}},
		{"exactly full", [][]write{group(127, 10), group(1, 10)}, []int{127, 1}},
		{"bytes", [][]write{group(3, 300<<10), group(1, 300<<10)}, []int{3, 1}},
		{"a group of too many bytes", [][]write{group(6, 300<<10)}, []int{3, 3}},
		{"two commands write one key", [][]write{{same}, {same}}, []int{1, 1}},
		{"a group is not torn for a key of another", [][]write{{same}, append(group(2, 10), same), group(1, 10)}, []int{1, 4}},
		{"a group with a key twice is split", [][]write{append(append(group(2, 10), same), same)}, []int{3, 1}},
		{"nothing", nil, nil},
	} {
		var p pack
		for _, g := range c.groups {
			p.add(g)
		}
		var got []int
		for _, txn := range p.txns {
			got = append(got, len(txn))
			size := 0
			for _, w := range txn {
				size += w.size()
			}
			if len(txn)+1 > anyTxnOps || size > maxTxnBytes {
				t.Errorf("%s: a transaction of %d operations and %d bytes", c.name, len(txn), size)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	c := testCodec(t)
	huge := putTopic{testID(1), "a", false, 1, map[string]string{"k": strings.Repeat("x", maxTxnBytes)}, 0}
	if _, err := c.groups([]Change{huge}); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("a value beyond one transaction: %v", err)
	}
}
