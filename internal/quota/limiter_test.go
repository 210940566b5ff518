package quota

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func entityOf(user, client string) (e metadata.QuotaEntity) {
	part := func(s string) metadata.QuotaName {
		switch s {
		case "":
			return metadata.QuotaName{}
		case "*":
			return metadata.QuotaName{Set: true, Default: true}
		}
		return metadata.QuotaName{Set: true, Name: s}
	}
	return metadata.QuotaEntity{User: part(user), ClientID: part(client)}
}

func imageOf(quotas map[metadata.QuotaEntity]map[string]float64) *metadata.Image {
	e := metadata.NewImage().Edit()
	for who, q := range quotas {
		e.SetQuota(who, q)
	}
	return e.Image(7)
}

// Kafka's eight places of a quota, the most particular first, and whose window it
// is measured in.
func TestPrecedence(t *testing.T) {
	places := [][2]string{{"alice", "app"}, {"alice", "*"}, {"alice", ""}, {"*", "app"}, {"*", "*"}, {"*", ""}, {"", "app"}, {"", "*"}}
	whose := [][2]string{{"alice", "app"}, {"alice", "app"}, {"alice", ""}, {"alice", "app"}, {"alice", "app"}, {"alice", ""}, {"", "app"}, {"", "app"}}
	quotas := map[metadata.QuotaEntity]map[string]float64{}
	for i, p := range places {
		quotas[entityOf(p[0], p[1])] = map[string]float64{metadata.QuotaFetch: float64(i + 1)}
	}
	for i := range places {
		r := newRules(maps.All(quotas))
		limit, who, ok := r.find(Fetch, "alice", "app")
		if !ok || limit != float64(i+1) || who != entityOf(whose[i][0], whose[i][1]) {
			t.Errorf("without the first %d places: %g in the window of %v, %v", i, limit, who, ok)
		}
		if _, _, ok := r.find(Produce, "alice", "app"); ok {
			t.Error("a quota of another kind was found")
		}
		delete(quotas, entityOf(places[i][0], places[i][1]))
	}
	// Nobody else's.
	r := newRules(maps.All(map[metadata.QuotaEntity]map[string]float64{entityOf("bob", "app"): {metadata.QuotaFetch: 1}, entityOf("", "other"): {metadata.QuotaFetch: 1}}))
	if _, _, ok := r.find(Fetch, "alice", "app"); ok {
		t.Error("another's quota was found")
	}
}

func TestLimiter(t *testing.T) {
	c := clock.NewManual(time.UnixMilli(1_000_000))
	l := NewLimiter(Options{Clock: c, MaxEntities: 3})
	if l.Record(Produce, "alice", "app", 1e12) != 0 || l.Limits(Produce) {
		t.Fatal("there is no quota yet")
	}
	l.Follow(imageOf(map[metadata.QuotaEntity]map[string]float64{
		entityOf("", "*"):       {metadata.QuotaProduce: 100, metadata.QuotaMutation: 1},
		entityOf("alice", ""):   {metadata.QuotaProduce: 1000},
		{IP: named("10.0.0.1")}: {metadata.QuotaConnections: 1},
	}))
	if !l.Limits(Produce) || l.Limits(Fetch) {
		t.Fatal("kinds")
	}
	if w := l.Record(Produce, "bob", "app", 1100); w != time.Second {
		t.Error(w)
	}
	if w := l.Record(Produce, "bob", "other", 1000); w != 0 {
		t.Error("another client id waits", w)
	}
	if w := l.Record(Produce, "alice", "app", 10_000); w != 0 {
		t.Error("alice has more", w)
	}
	if n := l.MaxAnswer(Produce, "bob", "x", 1<<20); n != 1000 {
		t.Error(n)
	}
	// More than are told apart share a window, of their kind only.
	l.Record(Produce, "bob", "made-up-1", 1000)
	if w := l.Record(Produce, "bob", "made-up-2", 100); w != time.Second {
		t.Error("names beyond the limit are free", w)
	}
	for i := range 100 {
		l.Record(Produce, "bob", fmt.Sprint(i), 1)
	}
	if n := l.Entities(); n != 4 {
		t.Errorf("%d entities", n)
	}
	// And are forgotten with their windows.
	c.Advance(time.Minute)
	l.Record(Produce, "bob", "new", 1)
	if n := l.Entities(); n != 1 {
		t.Errorf("%d entities after a minute", n)
	}
	// Mutations: strictly refused, otherwise only told.
	if w, err := l.Mutate("bob", "app", 12, true); w != time.Second || err != nil {
		t.Error(w, err)
	}
	if w, err := l.Mutate("bob", "app", 1, true); w != time.Second || !errors.Is(err, ErrExceeded) {
		t.Error(w, err)
	}
	if w, err := l.Mutate("bob", "app", 1, false); w != 2*time.Second || err != nil {
		t.Error(w, err)
	}
	// Connections: what is turned away does not count.
	for i := range 30 {
		if w := l.Connect("10.0.0.1"); (w > 0) != (i >= 10) || w > time.Second {
			t.Error(i, w)
		}
	}
	if l.Connect("10.0.0.2") != 0 {
		t.Error("another address waits")
	}
	l.Follow(metadata.NewImage())
	if l.Limits(Produce) || l.Entities() != 0 {
		t.Error("the quotas are gone")
	}
}

// Nothing is allocated for clients that are known, and nothing at all is done
// without quotas.
func TestRecordAllocatesNothing(t *testing.T) {
	l := NewLimiter(Options{})
	check := func() {
		t.Helper()
		if n := testing.AllocsPerRun(1000, func() { l.Record(Produce, "alice", "app", 1) }); n != 0 {
			t.Errorf("%g allocations", n)
		}
	}
	check()
	l.Follow(imageOf(map[metadata.QuotaEntity]map[string]float64{entityOf("*", "*"): {metadata.QuotaProduce: 1e9}}))
	check()
}
