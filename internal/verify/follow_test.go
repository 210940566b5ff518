package verify

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// TestResume: from where a comparison goes on when the logs have changed meanwhile.
func TestResume(t *testing.T) {
	ids := [2][16]byte{{1}, {1}}
	at := func(start, verified int64, epoch int32) progress {
		return progress{begun: true, ids: ids, start: start, verified: verified, epoch: epoch, batches: 3, bytes: 30}
	}
	for _, tc := range []struct {
		name           string
		before         progress
		ids            [2][16]byte
		source, mirror Range
		ends           []int64
		start, end     int64 // verified after
		skipped        int64
		again          bool // from the beginning
	}{
		{"at first, from the later start", progress{}, ids, Range{5, 20}, Range{3, 20}, nil, 5, 5, 0, true},
		{"goes on", at(5, 20, 2), ids, Range{5, 30}, Range{3, 25}, []int64{28, 25}, 5, 20, 0, false},
		{"another topic", at(5, 20, 2), [2][16]byte{{2}, {1}}, Range{0, 9}, Range{0, 9}, nil, 0, 0, 0, true},
		{"retention behind it", at(5, 20, 2), ids, Range{10, 30}, Range{12, 25}, []int64{28, 25}, 12, 20, 0, false},
		{"retention ahead of it", at(5, 20, 2), ids, Range{24, 30}, Range{3, 25}, []int64{28, 25}, 24, 24, 4, false},
		{"retention of the whole epoch", at(5, 20, 2), ids, Range{24, 30}, Range{24, 30}, []int64{-1, -1}, 24, 24, 4, false},
		{"the mirror was cut and is as long again", at(5, 20, 2), ids, Range{5, 30}, Range{3, 30}, []int64{28, 15}, 5, 15, 0, false},
		{"the source was cut by an unclean election", at(5, 20, 2), ids, Range{5, 30}, Range{3, 25}, []int64{12, 25}, 5, 12, 0, false},
		{"cut to nothing, in newer epochs since", at(5, 20, 2), ids, Range{5, 30}, Range{5, 30}, []int64{28, -1}, 5, 5, 0, false},
		{"cut below where it began", at(5, 20, 2), ids, Range{0, 30}, Range{0, 30}, []int64{3, 28}, 3, 3, 0, false},
		{"shorter, without epochs", at(5, 20, -1), ids, Range{5, 30}, Range{3, 15}, nil, 5, 15, 0, false},
		{"empty", at(0, 20, -1), ids, Range{0, 0}, Range{0, 30}, nil, 0, 0, 0, false},
	} {
		p := resume(tc.before, tc.ids, tc.source, tc.mirror, tc.ends)
		if !p.begun || p.ids != tc.ids || p.start != tc.start || p.verified != tc.end || p.skipped != tc.skipped {
			t.Errorf("%s: %+v, want from %d to %d, %d skipped", tc.name, p, tc.start, tc.end, tc.skipped)
		}
		if again := p.bytes == 0; again != tc.again {
			t.Errorf("%s: counts kept: %v", tc.name, !again)
		}
		if p.verified != tc.before.verified && p.epoch != -1 {
			t.Errorf("%s: epoch %d is that of another offset", tc.name, p.epoch)
		}
	}
}

// TestFollow: each round goes on where the last one was, through growth, a difference
// and deleted records.
func TestFollow(t *testing.T) {
	a, b := newFake(t), newFake(t)
	for _, f := range []*fake{a, b} {
		f.create(t, "orders", 1)
		f.produce(t, "orders", 0, "a", "b")
	}
	both := func(values ...string) {
		for _, f := range []*fake{a, b} {
			f.produce(t, "orders", 0, values...)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := Options{
		Source: Cluster{Bootstrap: a.ListenAddrs(), Dialer: dialer()}, Mirror: Cluster{Bootstrap: b.ListenAddrs(), Dialer: dialer()},
		FetchBytes: 1, Workers: 2, Rate: 1 << 20,
	}
	step := 0
	Follow(ctx, o, time.Millisecond, func(r *Report, err error) {
		step++
		if err != nil || len(r.Partitions) != 1 {
			t.Fatalf("step %d: %v, %+v", step, err, r)
		}
		p := r.Partitions[0]
		want := func(result Result, verified, batches int64) {
			t.Helper()
			if p.Result != result || p.Verified != verified || p.Batches != batches {
				t.Errorf("step %d: %+v", step, p)
			}
		}
		switch step {
		case 1:
			want(Equal, 2, 2)
			both("c", "d", "e")
		case 2:
			want(Equal, 5, 5)
			a.produce(t, "orders", 0, "f")
		case 3:
			want(Equal, 5, 5)
			if p.Behind() != 1 || p.Unverified() != 0 {
				t.Errorf("behind: %+v", p)
			}
			b.produce(t, "orders", 0, "X")
			both("g")
		case 4:
			want(Differs, 5, 5)
			if p.Offset != 5 {
				t.Errorf("differs: %+v", p)
			}
			if _, err := kadm.NewClient(a.client).DeleteRecords(ctx, kadm.Offsets{"orders": {0: {Topic: "orders", At: 6}}}); err != nil {
				t.Fatal(err)
			}
		case 5:
			want(Equal, 7, 6) // the difference is out of reach
			if p.Skipped != 1 || p.Compared.Start != 6 {
				t.Errorf("after records were deleted: %+v", p)
			}
			b.Close()
			cancel()
		}
	})
	if step != 5 {
		t.Errorf("%d steps", step)
	}
}

// TestFollowWaits: a side that is away fails rounds, and is found again.
func TestFollowWaits(t *testing.T) {
	a, b := newFake(t), newFake(t)
	for _, f := range []*fake{a, b} {
		f.create(t, "orders", 1)
		f.produce(t, "orders", 0, "a")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	away := []string{"127.0.0.1:1"}
	o := Options{Source: Cluster{Bootstrap: a.ListenAddrs(), Dialer: dialer()}, Mirror: Cluster{Bootstrap: append(away, b.ListenAddrs()...), Dialer: dialer()}}
	rounds := 0
	Follow(ctx, o, time.Millisecond, func(r *Report, err error) {
		if rounds++; rounds == 1 {
			if err != nil || !r.OK() {
				t.Errorf("one of two addresses: %v, %+v", err, r)
			}
			b.Close()
			return
		}
		if err == nil {
			t.Errorf("a closed cluster was compared: %+v", r)
		}
		if rounds == 3 {
			cancel()
		}
	})
}
