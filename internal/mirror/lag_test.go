package mirror

import (
	"testing"
	"time"
)

// A lag of zero may mean three things, and an operator who is about to fail over
// has to know which.
func TestJudge(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const s = time.Second
	for name, test := range map[string]struct {
		in      sighting
		contact Contact
		lag     time.Duration
	}{
		"never heard": {sighting{end: 100, newest: ago(s)}, ContactUnknown, -1},
		"everything is here, and records come": {
			sighting{known: true, seen: 100, end: 100, heard: ago(s), caughtUp: ago(s), moved: ago(2 * s)}, ContactCurrent, 0},
		"everything is here, and nothing was written for a minute": {
			sighting{known: true, seen: 100, end: 100, heard: ago(s), caughtUp: ago(s), moved: ago(60 * s)}, ContactIdle, 0},
		"an empty topic": {
			sighting{known: true, heard: ago(s), caughtUp: ago(s), moved: ago(60 * s)}, ContactIdle, 0},
		"behind since it was caught up 30 s ago": {
			sighting{known: true, seen: 120, end: 100, heard: ago(s), caughtUp: ago(30 * s), moved: ago(s)}, ContactBehind, 30 * s},
		"catching up after an outage of an hour, and a minute is left": {
			sighting{known: true, seen: 120, end: 100, heard: ago(s), caughtUp: ago(3600 * s), moved: ago(s), newest: ago(60 * s)}, ContactBehind, 60 * s},
		"never caught up yet: the records' own times tell": {
			sighting{known: true, seen: 120, end: 100, heard: ago(s), moved: ago(s), newest: ago(86400 * s)}, ContactBehind, 86400 * s},
		"never caught up, and records without times": {
			sighting{known: true, seen: 120, end: 100, heard: ago(s), moved: ago(s)}, ContactBehind, -1},
		"a producer's clock that is ahead bounds nothing": {
			sighting{known: true, seen: 120, end: 100, heard: ago(s), caughtUp: ago(30 * s), moved: ago(s), newest: ago(-5 * s)}, ContactBehind, 30 * s},
		"silent for a minute, everything of then is here": {
			sighting{known: true, seen: 100, end: 100, heard: ago(60 * s), caughtUp: ago(60 * s), moved: ago(90 * s), newest: ago(90 * s)}, ContactStale, 60 * s},
		"silent for a minute, and was behind": {
			sighting{known: true, seen: 120, end: 100, heard: ago(60 * s), caughtUp: ago(90 * s), moved: ago(61 * s), newest: ago(61 * s)}, ContactStale, 61 * s},
		"silent, with a record here that is newer than the last answer": {
			sighting{known: true, seen: 120, end: 100, heard: ago(60 * s), caughtUp: ago(90 * s), moved: ago(61 * s), newest: ago(2 * s)}, ContactStale, 60 * s},
		"failed or paused a second ago: nobody asks the source": {
			sighting{known: true, seen: 100, end: 100, heard: ago(s), caughtUp: ago(s), moved: ago(9 * s), patience: -1}, ContactStale, s},
		"a slow answer is no outage": {
			sighting{known: true, seen: 100, end: 100, heard: ago(8 * s), caughtUp: ago(8 * s), moved: ago(9 * s)}, ContactCurrent, 0},
	} {
		test.in.now, test.in.fetching, test.in.patience = now, test.in.patience == 0, 8*time.Second
		if c, lag := test.in.judge(); c != test.contact || lag != test.lag {
			t.Errorf("%s: %s, %v; want %s, %v", name, c, lag, test.contact, test.lag)
		}
	}
}
