package isr

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.UnixMilli(1_000_000)

func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func anybody(int32, int64) bool { return true }

// One table, one story per row: reports arrive in order, and the high
// watermark must stand where the slowest counting member is, never fall, and not
// move before every member was heard.
func TestHighWatermark(t *testing.T) {
	type step struct {
		replica int32 // 1 leads
		end     int64
		durable int64   // with a durable tracker
		isr     []int32 // instead of a report: the metadata say so
		propose []int32 // instead of a report
		settle  bool    // instead of a report
		want    int64
	}
	for name, c := range map[string]struct {
		s     Settings
		steps []step
	}{
		"alone": {Settings{Replicas: []int32{1}, ISR: []int32{1}}, []step{{replica: 1, end: 5, want: 5}, {replica: 1, end: 9, want: 9}}},
		"slowest member decides": {Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}, []step{
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 7, want: 0},
			{replica: 3, end: 4, want: 4},
			{replica: 3, end: 8, want: 7},
		}},
		"outsider does not count": {Settings{Replicas: []int32{1, 9}, ISR: []int32{1}}, []step{{replica: 9, end: 3, want: 0}, {replica: 1, end: 6, want: 6}}},
		"shrink moves it": {Settings{Replicas: []int32{1, 2}, ISR: []int32{1, 2}}, []step{
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 3, want: 3},
			{isr: []int32{1}, want: 10},
		}},
		"a shrink that is only asked for does not": {Settings{Replicas: []int32{1, 2}, ISR: []int32{1, 2}}, []step{
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 3, want: 3},
			{propose: []int32{1}, want: 3},
			{replica: 1, end: 12, want: 3},
			{isr: []int32{1}, want: 12},
		}},
		"who is asked for counts already": {Settings{Replicas: []int32{1, 2}, ISR: []int32{1}}, []step{
			{replica: 1, end: 10, want: 10},
			{replica: 2, end: 10, want: 10},
			{propose: []int32{1, 2}, want: 10},
			{replica: 1, end: 12, want: 10},
			{settle: true, want: 12},
		}},
		"an older report does not lower it": {Settings{Replicas: []int32{1}, ISR: []int32{1}}, []step{{replica: 1, end: 10, want: 10}, {replica: 1, end: 6, want: 10}}},
		"nothing is committed below min ISR": {Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1}, MinISR: 2}, []step{
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 10, want: 0},
			{isr: []int32{1, 2}, want: 10},
		}},
		"one replica is enough where there is one": {Settings{Replicas: []int32{1}, ISR: []int32{1}, MinISR: 2}, []step{{replica: 1, end: 10, want: 10}}},
		"what is in memory only does not count": {Settings{Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Durable: true}, []step{
			{replica: 1, end: 10, durable: 4, want: 0},
			{replica: 2, end: 10, durable: -1, want: 0},
			{replica: 2, end: 10, durable: 6, want: 4},
			{replica: 1, end: 10, durable: 10, want: 6},
		}},
	} {
		tr := New(1, c.s, 0, 0, t0)
		for i, s := range c.steps {
			switch {
			case s.isr != nil:
				c.s.ISR = s.isr
				tr.Settle()
				tr.Configure(c.s, t0)
			case s.propose != nil:
				tr.Propose(s.propose)
			case s.settle:
				tr.Settle()
			case s.replica == 1:
				tr.Local(s.end, s.durable)
			default:
				tr.Fetched(Fetch{Replica: s.replica, BrokerEpoch: -1, End: s.end, Durable: s.durable}, t0)
			}
			if tr.HighWatermark() != s.want {
				t.Errorf("%s, step %d: high watermark %d, want %d", name, i, tr.HighWatermark(), s.want)
			}
		}
	}
}

func TestLowerAndRestart(t *testing.T) {
	tr := New(1, Settings{Replicas: []int32{1, 2}, ISR: []int32{1, 2}}, 0, 0, t0)
	fetch := func(end int64) { tr.Fetched(Fetch{Replica: 2, BrokerEpoch: -1, End: end, Durable: -1}, t0) }
	tr.Local(10, 10)
	fetch(10)
	tr.Lower(4)
	if tr.Local(6, 6); tr.HighWatermark() != 4 {
		t.Fatalf("after a cut to 4 the high watermark is %d: replica 2's old end must not count", tr.HighWatermark())
	}
	tr.Restart(100)
	if tr.Local(120, 120); tr.HighWatermark() != 100 {
		t.Fatalf("after a restart at 100: %d, before replica 2 was heard", tr.HighWatermark())
	}
}

// The gate of a mirror waited for ever for a follower that could not reach its leader: it
// had all that the cut had left, and so it counted as in sync, silent as it was. (MIR-181)
func TestDistrust(t *testing.T) {
	tr := New(1, Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}, 0, 0, t0)
	fetch := func(id int32, end int64, at time.Duration) {
		tr.Fetched(Fetch{Replica: id, BrokerEpoch: -1, End: end, Durable: -1}, t0.Add(at))
	}
	tr.Local(10, 10)
	fetch(2, 10, 0)
	fetch(3, 10, 0)
	if got := tr.Shrink(t0.Add(time.Minute), time.Second); got != nil {
		t.Fatalf("nobody lacks anything, and the ISR is to be %v", got)
	}
	tr.Distrust()
	tr.Lower(6)
	tr.Local(6, 6)
	fetch(2, 6, time.Minute)
	if got := tr.Shrink(t0.Add(time.Minute+500*time.Millisecond), time.Second); got != nil {
		t.Fatalf("after half a second the ISR is to be %v", got)
	}
	if got := tr.Shrink(t0.Add(time.Minute+2*time.Second), time.Second); !slices.Equal(got, []int32{1, 2}) {
		t.Fatalf("replica 3 has been silent since the cut, and the ISR is to be %v", got)
	}
	fetch(3, 6, time.Minute+3*time.Second)
	if got := tr.Shrink(t0.Add(time.Hour), time.Second); got != nil {
		t.Fatalf("replica 3 was heard, and the ISR is to be %v", got)
	}
}

// A follower leaves when it was not caught up for the whole lag, not when it is
// behind at the moment of the check; one that lags by a constant time stays.
func TestShrink(t *testing.T) {
	const lag = 30 * time.Second
	s := Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}
	begin := func() *Tracker {
		tr := New(1, s, 0, 0, t0)
		tr.Local(0, 0)
		return tr
	}
	fetch := func(tr *Tracker, id int32, end int64, sec int) {
		tr.Fetched(Fetch{Replica: id, BrokerEpoch: -1, End: end, Durable: -1}, at(sec))
	}
	t.Run("silent from the start", func(t *testing.T) {
		tr := begin()
		fetch(tr, 2, 0, 1)
		tr.Local(5, 5)
		fetch(tr, 2, 5, 2)
		if isr := tr.Shrink(at(30), lag); isr != nil {
			t.Fatalf("after the lag exactly: %v", isr)
		}
		if isr := tr.Shrink(at(31), lag); !slices.Equal(isr, []int32{1, 2}) {
			t.Fatalf("3 has never fetched: %v", isr)
		}
	})
	t.Run("nothing to fetch", func(t *testing.T) {
		tr := begin()
		fetch(tr, 2, 0, 1)
		fetch(tr, 3, 0, 1)
		for sec := 15; sec < 300; sec += 15 {
			if isr := tr.Shrink(at(sec), lag); isr != nil {
				t.Fatalf("at %d: %v", sec, isr)
			}
		}
		tr.Local(7, 7)
		fetch(tr, 3, 7, 301)
		if isr := tr.Shrink(at(310), lag); isr != nil {
			t.Fatalf("2 was caught up until a moment ago: %v", isr)
		}
		if isr := tr.Shrink(at(340), lag); !slices.Equal(isr, []int32{1, 3}) {
			t.Fatalf("2 is gone: %v", isr)
		}
	})
	t.Run("constantly ten seconds behind", func(t *testing.T) {
		tr := begin()
		for sec := 1; sec < 200; sec++ {
			tr.Local(int64(sec), int64(sec))
			fetch(tr, 2, int64(sec), sec)
			fetch(tr, 3, int64(max(sec-10, 0)), sec)
			if isr := tr.Shrink(at(sec), lag); isr != nil {
				t.Fatalf("at %d: %v", sec, isr)
			}
		}
	})
	t.Run("falls behind more and more", func(t *testing.T) {
		tr := begin()
		for sec := 1; ; sec++ {
			tr.Local(int64(sec*2), int64(sec*2))
			fetch(tr, 2, int64(sec*2), sec)
			fetch(tr, 3, int64(sec), sec)
			if isr := tr.Shrink(at(sec), lag); isr != nil {
				if sec < 31 || sec > 100 || !slices.Equal(isr, []int32{1, 2}) {
					t.Fatalf("at %d: %v", sec, isr)
				}
				return
			}
		}
	})
}

// Who joins has everything that is committed, everything from before the
// leadership, is alive, and there is one proposal at a time.
func TestExpand(t *testing.T) {
	for name, c := range map[string]struct {
		end  int64
		hw   int64
		want []int32
		may  func(int32, int64) bool
	}{
		"caught up":                              {end: 20, hw: 10, want: []int32{1, 2}},
		"at the start of the leadership":         {end: 15, hw: 10, want: []int32{1, 2}},
		"committed, but not all before the term": {end: 12, hw: 10},
		"below the high watermark":               {end: 9, hw: 10},
		"fenced":                                 {end: 20, hw: 10, may: func(int32, int64) bool { return false }},
		"of another registration":                {end: 20, hw: 10, may: func(_ int32, epoch int64) bool { return epoch == 8 }},
	} {
		tr := New(1, Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1}, MinISR: 2}, c.hw, 15, t0)
		tr.Local(20, 20)
		tr.Fetched(Fetch{Replica: 2, BrokerEpoch: 7, End: c.end, Durable: -1}, t0)
		if c.may == nil {
			c.may = func(_ int32, epoch int64) bool { return epoch == 7 }
		}
		got := tr.Expand(c.may)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if got != nil {
			tr.Propose(got)
			if again := tr.Expand(anybody); again != nil {
				t.Errorf("%s: %v proposed while %v is in flight", name, again, got)
			}
		}
	}
}

// Against a model that remembers everything: the high watermark never falls
// without a truncation, and whenever it moves every member of the ISR and of a
// proposed one has what is below it.
// A replica was removed, deleted its log and is a replica again, and the leader has
// seen only the last of this: what it had does not let it join.
func TestForget(t *testing.T) {
	now := time.Unix(0, 0)
	yes := func(int32, int64) bool { return true }
	s := Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}, MinISR: 1}
	tr := New(1, s, 0, 0, now)
	tr.Local(10, 10)
	for id := int32(2); id <= 3; id++ {
		tr.Fetched(Fetch{Replica: id, BrokerEpoch: 1, End: 10, Durable: 10}, now)
	}
	if got := tr.Expand(yes); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Fatalf("3 is caught up, and the ISR to ask for is %v", got)
	}
	tr.Configure(s, now)
	tr.Forget()
	if got := tr.Expand(yes); got != nil {
		t.Errorf("joins by what it had in an epoch before: %v", got)
	}
	tr.Local(11, 11)
	if tr.Fetched(Fetch{Replica: 2, BrokerEpoch: 1, End: 11, Durable: 11}, now); tr.HighWatermark() != 11 {
		t.Errorf("the ISR has 11, the high watermark is %d", tr.HighWatermark())
	}
	tr.Fetched(Fetch{Replica: 3, BrokerEpoch: 1, End: 11, Durable: 11}, now)
	if got := tr.Expand(yes); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("3 has caught up again, and the ISR to ask for is %v", got)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		durable := rapid.Bool().Draw(t, "durable")
		s := Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, MinISR: rapid.IntRange(1, 3).Draw(t, "min"), Durable: durable}
		start := rapid.Int64Range(0, 20).Draw(t, "start")
		tr := New(1, s, rapid.Int64Range(0, start).Draw(t, "hw"), start, t0)
		has := map[int32]int64{1: -1, 2: -1, 3: -1}
		now, end := 0, start
		hw := tr.HighWatermark()
		check := func(what string) {
			got := tr.HighWatermark()
			if got < hw {
				t.Fatalf("%s: high watermark fell from %d to %d", what, hw, got)
			}
			if got > hw {
				if len(s.ISR) < min(s.MinISR, 3) {
					t.Fatalf("%s: it moved below min ISR", what)
				}
				for _, id := range append(slices.Clone(s.ISR), tr.Proposed()...) {
					if has[id] < got {
						t.Fatalf("%s: high watermark %d, replica %d has %d", what, got, id, has[id])
					}
				}
			}
			hw = got
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				end += rapid.Int64Range(0, 5).Draw(t, "n")
				disk := rapid.Int64Range(0, end).Draw(t, "disk")
				has[1] = end
				if durable {
					has[1] = disk
				}
				tr.Local(end, disk)
				check("append")
			},
			"fetch": func(t *rapid.T) {
				id := rapid.Int32Range(2, 4).Draw(t, "id")
				e := rapid.Int64Range(0, end).Draw(t, "end")
				disk := rapid.Int64Range(-1, e).Draw(t, "disk")
				if id < 4 {
					has[id] = e
					if durable {
						has[id] = disk
					}
				}
				now++
				tr.Fetched(Fetch{Replica: id, BrokerEpoch: -1, End: e, Durable: disk}, at(now))
				check("fetch")
			},
			"propose": func(t *rapid.T) {
				var isr []int32
				if rapid.Bool().Draw(t, "shrink") {
					now += 40
					isr = tr.Shrink(at(now), 30*time.Second)
				} else {
					isr = tr.Expand(anybody)
				}
				if isr != nil {
					if !slices.Contains(isr, 1) {
						t.Fatalf("%v without the leader", isr)
					}
					for _, id := range isr {
						if !slices.Contains(s.ISR, id) && has[id] < max(hw, start) {
							t.Fatalf("%d joins with %d below %d", id, has[id], max(hw, start))
						}
					}
					tr.Propose(isr)
				}
				check("propose")
			},
			"answer": func(t *rapid.T) {
				if p := tr.Proposed(); p != nil && rapid.Bool().Draw(t, "taken") {
					s.ISR = slices.Clone(p)
					tr.Configure(s, at(now)) // the metadata come before the answer does
					check("metadata")
				}
				tr.Settle()
				check("answer")
			},
			"cut": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
					return
				}
				end = rapid.Int64Range(0, end).Draw(t, "to")
				tr.Lower(end)
				for id := range has {
					has[id] = min(has[id], end)
				}
				start, hw = min(start, end), min(hw, end)
				check("cut")
			},
		})
	})
}

// A leader of an empty log was in sync with one that had been leader before it and had
// got 24 records of a mirror. Nothing was committed of them, so the high watermark stood
// at the log end from the beginning, and a stop recorded that nothing had been mirrored;
// then the other one led again. Whoever asks how far all have come has to wait until
// everybody who could lead has been heard of. (Simulation of two clusters, seed 20631.)
func TestHeard(t *testing.T) {
	s := Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2}}
	tr := New(1, s, 0, 0, t0)
	tr.Local(0, 0)
	if tr.HighWatermark() != 0 || tr.Heard() {
		t.Fatal("2 was not heard of")
	}
	tr.Fetched(Fetch{Replica: 3}, at(1))
	if tr.Heard() {
		t.Fatal("3 is not in sync, and says nothing of 2")
	}
	tr.Fetched(Fetch{Replica: 2}, at(1))
	if !tr.Heard() {
		t.Fatal("all that are in sync were heard of")
	}
	tr.Propose([]int32{1, 2, 3})
	if !tr.Heard() {
		t.Fatal("3 was heard of before")
	}
	tr.Restart(7)
	if tr.Heard() {
		t.Fatal("what they had before the log began anew says nothing of now")
	}
	alone := New(1, Settings{Replicas: []int32{1, 2}, ISR: []int32{1}}, 0, 0, t0)
	if !alone.Heard() {
		t.Fatal("there is nobody else")
	}
}

// The lowest log start is of the followers that the high watermark waits for. It is not
// known before all of them have told theirs.
func TestLowestStart(t *testing.T) {
	now := time.Unix(0, 0)
	tr := New(1, Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}, 10, 10, now)
	told := func(id int32, start, want int64) {
		t.Helper()
		tr.Fetched(Fetch{Replica: id, End: 10, Durable: 10, Start: start, BrokerEpoch: -1}, now)
		if got := tr.LowestStart(); got != want {
			t.Errorf("after %d told %d: %d, want %d", id, start, got, want)
		}
	}
	told(2, 4, -1)
	told(3, 2, 2)
	told(3, -1, 2)
	told(3, 6, 4)
	tr.Configure(Settings{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 3}}, now)
	if got := tr.LowestStart(); got != 6 {
		t.Errorf("without 2: %d", got)
	}
	tr.Propose([]int32{1, 2, 3})
	if got := tr.LowestStart(); got != 4 {
		t.Errorf("with 2, perhaps: %d", got)
	}
	tr.Configure(Settings{Replicas: []int32{1}, ISR: []int32{1}}, now)
	tr.Settle()
	if got := tr.LowestStart(); got != math.MaxInt64 {
		t.Errorf("alone: %d", got)
	}
}
