package isr

import "testing"

// One table, one story per row: reports arrive in order, and the high
// watermark must stand where the slowest ISR member is, never fall, and not
// move before every member was heard.
func TestHighWatermark(t *testing.T) {
	type step struct {
		replica int32
		end     int64
		isr     []int32 // instead of a report
		want    int64
	}
	for name, steps := range map[string][]step{
		"alone": {{replica: 1, end: 5, want: 5}, {replica: 1, end: 9, want: 9}},
		"slowest member decides": {
			{isr: []int32{1, 2, 3}, want: 0},
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 7, want: 0},
			{replica: 3, end: 4, want: 4},
			{replica: 3, end: 8, want: 7},
		},
		"outsider does not count": {{replica: 9, end: 3, want: 0}, {replica: 1, end: 6, want: 6}},
		"shrink moves it": {
			{isr: []int32{1, 2}, want: 0},
			{replica: 1, end: 10, want: 0},
			{replica: 2, end: 3, want: 3},
			{isr: []int32{1}, want: 10},
		},
		"an older report does not lower it": {{replica: 1, end: 10, want: 10}, {replica: 1, end: 6, want: 10}},
	} {
		tr := NewTracker([]int32{1}, 0)
		for i, s := range steps {
			var got int64
			if s.isr != nil {
				got, _ = tr.SetISR(s.isr)
			} else {
				got, _ = tr.Update(s.replica, s.end)
			}
			if got != s.want || tr.HighWatermark() != s.want {
				t.Errorf("%s, step %d: high watermark %d, want %d", name, i, got, s.want)
			}
		}
	}
}

func TestLowerAndRestart(t *testing.T) {
	tr := NewTracker([]int32{1, 2}, 0)
	tr.Update(1, 10)
	tr.Update(2, 10)
	tr.Lower(4)
	if hw, _ := tr.Update(1, 6); hw != 4 {
		t.Fatalf("after a cut to 4 the high watermark is %d: replica 2's old end must not count", hw)
	}
	tr.Restart(100)
	if hw, moved := tr.Update(1, 120); hw != 100 || moved {
		t.Fatalf("after a restart at 100: %d, moved %v, before replica 2 was heard", hw, moved)
	}
}
