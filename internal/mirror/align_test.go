package mirror

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// history is a log as far as epochs tell: entries and bounds.
type history struct {
	entries    []epoch.Entry
	start, end int64
}

func (h history) questions() alignQuestions {
	return alignQuestions{
		epochEnd: func(e int32) (sdk.EpochEnd, error) {
			epoch, end := epoch.New(h.entries).End(e, h.end)
			return sdk.EpochEnd{Epoch: epoch, End: end}, nil
		},
		bounds: func() (int64, int64, error) { return h.start, h.end, nil },
	}
}

func TestAlign(t *testing.T) {
	ours := []epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 5, Start: 100}, {Epoch: 6, Start: 160}}
	for _, test := range []struct {
		name   string
		end    int64
		source history
		want   int64
	}{
		{"source ahead in the same epoch", 200, history{ours, 0, 500}, 200},
		{"source ahead in a later epoch", 200, history{append(ours[:4:4], epoch.Entry{Epoch: 9, Start: 300}), 0, 500}, 200},
		{"source ends inside our newest epoch", 200, history{ours, 0, 180}, 180},
		{"same epochs, cut for the LME first", 130, history{ours, 0, 500}, 130},
		{"source has epoch 5 only up to 120, then 7", 200,
			history{[]epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 5, Start: 100}, {Epoch: 7, Start: 120}}, 0, 500}, 120},
		{"source went from 3 to 4 at 90", 200,
			history{[]epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 4, Start: 90}}, 0, 150}, 90},
		{"source has none of our epochs", 200, history{[]epoch.Entry{{Epoch: 1, Start: 0}}, 0, 500}, 0},
		{"source deleted the common part: its first epoch is later", 200,
			history{[]epoch.Entry{{Epoch: 8, Start: 1000}}, 1000, 1500}, 200},
		{"empty source, deleted beyond us", 200, history{nil, 700, 700}, 200},
		{"empty source, at zero", 200, history{nil, 0, 0}, 0},
		{"source knows only older epochs and does not say which (L3)", 200,
			history{[]epoch.Entry{{Epoch: 2, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 5, Start: 100}}, 0, 160}, 160},
		{"our log is empty", 0, history{ours, 0, 500}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := align(ours, test.end, test.source.questions())
			if err != nil || got != test.want {
				t.Errorf("align = %d, %v, want %d", got, err, test.want)
			}
		})
	}
}

// Whatever happened on both sides after a common prefix, with epochs that each
// side used alone, align finds exactly the end of the prefix.
func TestAlignFindsTheCommonPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var common []epoch.Entry
		end, e := int64(0), int32(0)
		for range rapid.IntRange(0, 5).Draw(t, "common epochs") {
			e += rapid.Int32Range(1, 3).Draw(t, "step")
			common = append(common, epoch.Entry{Epoch: e, Start: end})
			end += rapid.Int64Range(1, 50).Draw(t, "length")
		}
		tail := func(name string, parity int32) history {
			h := history{entries: append([]epoch.Entry(nil), common...), end: end}
			for next := e - e%2 + 2 + parity; len(h.entries) < len(common)+rapid.IntRange(0, 4).Draw(t, name); next += 2 {
				h.entries = append(h.entries, epoch.Entry{Epoch: next, Start: h.end})
				h.end += rapid.Int64Range(1, 50).Draw(t, name+" length")
			}
			return h
		}
		ours, source := tail("ours", 0), tail("source", 1)
		got, err := align(ours.entries, ours.end, source.questions())
		if err != nil || got != end {
			t.Fatalf("align = %d, %v, want %d; ours %+v, source %+v", got, err, end, ours, source)
		}
	})
}

func TestAlignErrors(t *testing.T) {
	ours := []epoch.Entry{{Epoch: 2, Start: 0}}
	broken := errors.New("broken")
	_, err := align(ours, 10, alignQuestions{epochEnd: func(int32) (sdk.EpochEnd, error) { return sdk.Undefined, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("epochEnd error: %v", err)
	}
	_, err = align(ours, 10, alignQuestions{
		epochEnd: func(int32) (sdk.EpochEnd, error) { return sdk.Undefined, nil },
		bounds:   func() (int64, int64, error) { return 0, 0, broken },
	})
	if !errors.Is(err, broken) {
		t.Errorf("bounds error: %v", err)
	}
	// A source that answers a later epoch than asked would send us in circles.
	_, err = align(ours, 10, alignQuestions{epochEnd: func(int32) (sdk.EpochEnd, error) { return sdk.EpochEnd{Epoch: 7, End: 5}, nil }})
	if err == nil || !strings.Contains(err.Error(), "epoch 7") {
		t.Errorf("a later epoch was accepted: %v", err)
	}
}
