package segment

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

var (
	tortureFiles = flag.Int("torture.files", 120, "damaged files that TestTorture opens beside the walk over all bits")
	tortureEvery = flag.Int("torture.every", 1009, "TestTorture flips every n-th bit of the small directories; 1 is each")
	tortureSeed  = flag.Uint64("torture.seed", 1, "of the damages that are drawn")
)

// answers is everything a log can be asked.
type answers struct {
	start, end, hw int64
	confirmed      int64 // durable end before the directory was opened; only of the undamaged log
	content        []byte
	reads          string // every offset looked up
	epochs         string
	txns           string
	producers      string
	times          string
	err            error // the first one that an answer was
}

// difference names the first answer that differs. A high watermark that is
// lower is legal: what is noted of it may lag.
func (a *answers) difference(b *answers) string {
	switch {
	case a.start != b.start:
		return fmt.Sprintf("log start %d, was %d", b.start, a.start)
	case a.end != b.end:
		return fmt.Sprintf("log end %d, was %d", b.end, a.end)
	case b.hw > a.hw:
		return fmt.Sprintf("high watermark %d, was %d", b.hw, a.hw)
	case !bytes.Equal(a.content, b.content):
		return "bytes"
	case a.reads != b.reads:
		return "reads by offset"
	case a.epochs != b.epochs:
		return "epochs " + b.epochs + ", were " + a.epochs
	case a.txns != b.txns:
		return "transactions " + b.txns + ", were " + a.txns
	case a.producers != b.producers:
		return "producers " + b.producers + ", were " + a.producers
	case a.times != b.times:
		return "times " + b.times + ", were " + a.times
	}
	return ""
}

// ask asks a log everything. hw is the one that the undamaged log had, because
// the last stable offset is a function of it.
func ask(l *Log, hw int64) *answers {
	a := &answers{}
	a.start, a.end, a.hw = l.StartOffset(), l.EndOffset(), l.HighWatermark()
	if hw < 0 {
		hw = a.hw
	}
	var b strings.Builder
	for offset := a.start; offset < a.end; {
		v, err := l.Read(offset, 1<<20, a.end, true)
		if err == nil && v.N == 0 {
			break
		}
		p := make([]byte, v.N)
		if err == nil {
			_, err = v.ReadAt(p, 0)
		}
		v.Release()
		if err != nil {
			a.err = err
			return a
		}
		if v.End <= offset {
			a.err = fmt.Errorf("read at %d goes on at %d", offset, v.End)
			return a
		}
		a.content, offset = append(a.content, p...), v.End
	}
	// A bit in a base offset can make a log seem to have any number of offsets.
	for offset := a.start; offset < min(a.end, a.start+2000); offset++ {
		v, err := l.Read(offset, 1, a.end, true)
		v.Release()
		if err != nil {
			a.err = err
			return a
		}
		e, ok := l.EpochAt(offset)
		fmt.Fprintf(&b, "%d:%d+%d@%d%v ", offset, v.Base, v.N, e, ok)
	}
	a.reads = b.String()
	b.Reset()
	latest, _ := l.LatestEpoch()
	fmt.Fprint(&b, l.Epochs(), latest)
	for e := range min(latest, 100) + 2 {
		_, end := l.EpochEnd(e)
		fmt.Fprint(&b, " ", end)
	}
	a.epochs = b.String()
	a.txns = fmt.Sprint(l.Aborted(a.start, a.end), l.OpenTxns(), l.LastStable(hw))
	a.producers = fmt.Sprint(l.Producers())
	b.Reset()
	for ts := int64(9_990); ts < 10_300; ts += 29 {
		o, at, e, ok, err := l.OffsetForTime(ts)
		if err != nil {
			a.err = err
			return a
		}
		fmt.Fprint(&b, o, "@", at, "e", e, ok, " ")
	}
	o, at, e, ok := l.MaxTimestamp()
	fmt.Fprint(&b, o, at, e, ok)
	a.times = b.String()
	return a
}

// opened is what came of opening a directory.
type opened struct {
	err    error // of the store
	got    map[int32]*answers
	scrub  map[int32]error
	events []string
}

// open opens a directory and asks its logs. Each is scrubbed after it was asked.
func (f *fixture) open(files image) (run opened) {
	fs, err := files.put()
	if err != nil {
		return opened{err: err}
	}
	events := &eventLog{}
	o := f.o
	o.FS, o.Logger = fs, slog.New(events)
	s, err := Open(o)
	if err != nil {
		return opened{err: err, events: events.all()}
	}
	run.got, run.scrub = map[int32]*answers{}, map[int32]error{}
	for _, p := range f.logs {
		l, err := s.OpenLog(topicA, p, f.c)
		if err != nil {
			run.got[p] = &answers{err: err}
			continue
		}
		run.got[p] = ask(l, f.want[p].hw)
		run.scrub[p] = scrubAll(l)
	}
	run.events = events.all()
	_ = s.Close()
	return run
}

// scrubAll is one pass of the scrubber over a log, without its pauses,
// and nothing is done about what it finds.
func scrubAll(l *Log) error {
	for from := l.StartOffset(); ; {
		target, ok := l.scrubNext(from)
		if !ok {
			return nil
		}
		d, err := l.store.scrubber.check(l, target, false)
		if d != nil {
			return d
		}
		if err != nil {
			return err
		}
		from = target.end
	}
}

// verdict is what became of one damage.
type verdict int

const (
	detected verdict = iota // an error at opening or reading, or an event
	scrubbed                // found by the scrub, not before
	repaired                // every answer is right, and an event says that there was something
	harmless                // every answer is right
	unsynced                // the log is shorter, by batches that no fsync had confirmed
	silent                  // an answer is wrong and nobody says so
	verdicts
)

func (v verdict) String() string {
	return [...]string{"detected", "by scrub", "repaired", "harmless", "unsynced", "silent"}[v]
}

// judge compares what a damaged directory answers with what it should. Each log
// is judged by itself, so that an error of one does not hide the lie of another.
func (f *fixture) judge(run opened) (worst verdict, why string) {
	if run.err != nil {
		return detected, ""
	}
	worst = harmless
	said := len(run.events) > 0
	if said {
		worst = repaired
	}
	for p := range run.got {
		got, want := run.got[p], f.want[p]
		if got.err != nil {
			worst = min(worst, detected)
			continue
		}
		diff := want.difference(got)
		switch {
		case diff == "":
		case f.lostTail(want, got):
			if worst == harmless {
				worst = unsynced
			}
		case said && f.names(run.events, p):
			worst = min(worst, detected)
		case run.scrub[p] != nil:
			worst = min(worst, scrubbed)
		default:
			return silent, fmt.Sprintf("log %d: %s", p, diff)
		}
	}
	return worst, ""
}

// names says that an event speaks of this log, or of all.
func (f *fixture) names(events []string, p int32) bool {
	for _, e := range events {
		if !strings.Contains(e, LogID{Topic: topicA}.String()[:22]) || strings.Contains(e, LogID{topicA, p}.String()) {
			return true
		}
	}
	return false
}

// lostTail says that got differs from want only in what no fsync had confirmed:
// it is shorter, or a batch there has another offset or epoch. Nobody can tell
// that from what a power cut leaves.
func (f *fixture) lostTail(want, got *answers) bool {
	if f.clean || got.start != want.start || got.end < want.confirmed {
		return false
	}
	rest := want.content
	for len(rest) > 0 {
		b, next, err := record.Next(rest)
		if err != nil || b.NextOffset() > want.confirmed {
			break
		}
		rest = next
	}
	return bytes.HasPrefix(got.content, want.content[:len(want.content)-len(rest)])
}

// tally counts verdicts by kind of damage.
type tally struct {
	mu    sync.Mutex
	count map[string]*[verdicts]int
	bad   []string
}

func (c *tally) add(kind string, v verdict, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[kind] == nil {
		c.count[kind] = new([verdicts]int)
	}
	c.count[kind][v]++
	if v == silent && len(c.bad) < 40 {
		c.bad = append(c.bad, what)
	}
}

func (c *tally) print(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s", "damage")
	for v := range verdicts {
		fmt.Fprintf(&b, "%10s", v)
	}
	var total [verdicts]int
	for _, kind := range slices.Sorted(maps.Keys(c.count)) {
		fmt.Fprintf(&b, "\n%-34s", kind)
		for v, n := range c.count[kind] {
			fmt.Fprintf(&b, "%10d", n)
			total[v] += n
		}
	}
	fmt.Fprintf(&b, "\n%-34s", "total")
	for _, n := range total {
		fmt.Fprintf(&b, "%10d", n)
	}
	t.Logf("torture, seed %d: silent = %d\n%s", *tortureSeed, total[silent], b.String())
}

// TestTorture damages one thing in a finished data directory, opens it, asks
// everything, and scrubs (H3). Every wrong answer has to come with an error, an
// event, or the scrubber's word. `make torture` walks over every bit of two small
// directories and thousands of damages of larger ones.
func TestTorture(t *testing.T) {
	began := time.Now()
	c := &tally{count: map[string]*[verdicts]int{}}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	try := func(f *fixture, kind, what string, files image) {
		g.Go(func() error {
			v, why := f.tryOne(files)
			c.add(kind, v, fmt.Sprintf("%s, %s: %s: %s", f.name, kind, what, why))
			return nil
		})
	}
	bits := 0
	for _, clean := range []bool{true, false} {
		f := newFixture(t, fmt.Sprintf("small, clean stop %v", clean), 420, 10, 3, clean, idempotentLog, txnLog)
		bits += f.everyBit(*tortureEvery, try)
	}
	all := []int32{plainLog, idempotentLog, txnLog, purgedLog}
	large := []*fixture{newFixture(t, "large, clean stop", 9000, 120, 60, true, all...), newFixture(t, "large, unclean stop", 9000, 120, 60, false, all...)}
	for i := range *tortureFiles {
		rng := rand.New(rand.NewPCG(*tortureSeed, uint64(i)))
		f := large[rng.IntN(len(large))]
		kind, what, files := f.damage(rng)
		for maps.EqualFunc(files, f.files, bytes.Equal) { // it drew a damage that changes nothing
			kind, what, files = f.damage(rng)
		}
		try(f, kind, fmt.Sprintf("case %d: %s", i, what), files)
	}
	_ = g.Wait()
	c.print(t)
	t.Logf("%d bits, %d files in %s", bits, *tortureFiles, time.Since(began).Round(time.Second))
	for _, bad := range c.bad {
		t.Errorf("silent: %s", bad)
	}
}

// tryOne opens a damaged directory. A panic is a silent failure too: of us.
func (f *fixture) tryOne(files image) (v verdict, why string) {
	defer func() {
		if r := recover(); r != nil {
			v, why = silent, fmt.Sprintf("panic: %v", r)
		}
	}()
	return f.judge(f.open(files))
}

// class is what a file is, for the table.
func class(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case strings.HasSuffix(name, fileSuffix) && strings.Contains(path, "/"+logsDir+"/"):
		return "segment"
	case strings.HasSuffix(name, producersSuffix):
		return "producers"
	case strings.Contains(name, "watermarks"):
		return "watermarks"
	case strings.HasSuffix(name, ".sst"):
		return "index table"
	case strings.Contains(path, "/"+indexDir+"/"):
		return "index other"
	}
	return name
}

// everyBit flips each n-th bit of each file.
func (f *fixture) everyBit(n int, try func(f *fixture, kind, what string, files image)) (bits int) {
	at := 0
	for _, path := range f.paths {
		for i := range f.files[path] {
			for bit := range 8 {
				if at++; at%n != 0 {
					continue
				}
				files := maps.Clone(f.files)
				files[path] = bytes.Clone(files[path])
				files[path][i] ^= 1 << bit
				try(f, "bit of "+class(path), fmt.Sprintf("%s bit %d of byte %d", path, bit, i), files)
				bits++
			}
		}
	}
	return bits
}

// damage draws one damage.
func (f *fixture) damage(rng *rand.Rand) (kind, what string, files image) {
	files = maps.Clone(f.files)
	path := f.paths[rng.IntN(len(f.paths))]
	if kinds := []string{"segment", "segment", "watermarks", "index table", "producers", ""}; rng.IntN(2) == 0 { // there are many more segments
		kind := kinds[rng.IntN(len(kinds))]
		for kind != "" && class(path) != kind {
			path = f.paths[rng.IntN(len(f.paths))]
		}
	}
	b := bytes.Clone(files[path])
	other := f.paths[rng.IntN(len(f.paths))]
	for n := 0; n < 20 && class(other) != class(path); n++ { // mostly of its kind
		other = f.paths[rng.IntN(len(f.paths))]
	}
	at := func(n int) int { return rng.IntN(max(n, 1)) }
	const page = 512 // the files are small, so are their pages
	name := damages[rng.IntN(len(damages))]
	what = path
	switch name {
	case "bits":
		for range 1 + rng.IntN(3) {
			if len(b) > 0 {
				b[at(len(b))] ^= 1 << rng.IntN(8)
			}
		}
		files[path] = b
	case "zeroed page":
		p := at(len(b)/page+1) * page
		clear(b[min(p, len(b)):min(p+page, len(b))])
		files[path] = b
	case "page of another place":
		src := files[other]
		from := at(len(src)/page+1) * page
		to := at(len(b)/page+1) * page
		copy(b[min(to, len(b)):], src[min(from, len(src)):min(from+page, len(src))])
		files[path], what = b, fmt.Sprintf("%s at %d from %s at %d", path, to, other, from)
	case "cut":
		n := at(len(b))
		files[path], what = b[:n], fmt.Sprintf("%s of %d to %d", path, len(b), n)
	case "cut between batches":
		n := boundaryOf(rng, b)
		files[path], what = b[:n], fmt.Sprintf("%s of %d to %d", path, len(b), n)
	case "batch of another place":
		if n, m := boundaryOf(rng, b), boundaryOf(rng, files[other]); n < len(b) && m < len(files[other]) {
			mine, _, _ := record.Next(b[n:])
			theirs, _, _ := record.Next(files[other][m:])
			if len(mine) == len(theirs) {
				copy(b[n:], theirs)
			}
		}
		files[path] = b
	case "removed":
		delete(files, path)
	case "renamed":
		delete(files, path)
		dir := path[:strings.LastIndexByte(path, '/')+1]
		to := dir + "renamed"
		if class(path) == "segment" {
			to = dir + fileName(int64(rng.IntN(300)))
		}
		files[to], what = b, path+" to "+to
	case "swapped":
		files[path], files[other] = files[other], files[path]
		what = path + " with " + other
	case "older copy":
		for _, i := range rng.Perm(len(f.older)) {
			if old, ok := f.older[i][path]; ok && !bytes.Equal(old, b) {
				files[path], what = old, fmt.Sprintf("%s of moment %d", path, i)
				break
			}
		}
	case "garbage behind":
		more := make([]byte, 1+rng.IntN(2000))
		switch rng.IntN(3) {
		case 0:
			for i := range more {
				more[i] = byte(rng.Uint32())
			}
		case 1: // zeros, as a file system leaves them
		case 2:
			copy(more, files[other])
		}
		files[path] = append(b, more...)
	case "copied":
		dir := path[:strings.LastIndexByte(path, '/')+1]
		to := dir + fileName(int64(rng.IntN(300)))
		if _, ok := files[to]; ok && class(path) != "segment" {
			to = dir + "copy"
		}
		files[to], what = b, path+" to "+to
	case "log directory removed":
		dir := f.logDir(rng)
		maps.DeleteFunc(files, func(p string, _ []byte) bool { return strings.HasPrefix(p, dir) })
		what = dir
	case "index of an earlier moment":
		old := f.older[rng.IntN(len(f.older))]
		maps.DeleteFunc(files, func(p string, _ []byte) bool { return strings.Contains(p, "/"+indexDir+"/") })
		for p, b := range old {
			if strings.Contains(p, "/"+indexDir+"/") {
				files[p] = b
			}
		}
		what = "all of it"
	case "log directory of an earlier moment":
		dir, old := f.logDir(rng), f.older[rng.IntN(len(f.older))]
		maps.DeleteFunc(files, func(p string, _ []byte) bool { return strings.HasPrefix(p, dir) })
		for p, b := range old {
			if strings.HasPrefix(p, dir) {
				files[p] = b
			}
		}
		what = dir
	}
	if !strings.HasPrefix(name, "log ") && !strings.HasPrefix(name, "index ") {
		name += ": " + class(path)
	}
	return name, what, files
}

var damages = []string{
	"bits", "bits", "zeroed page", "page of another place", "cut", "cut between batches", "batch of another place", "removed", "renamed", "swapped",
	"older copy", "older copy", "garbage behind", "copied", "log directory removed", "index of an earlier moment", "log directory of an earlier moment",
}

func (f *fixture) logDir(rng *rand.Rand) string {
	return f.o.Dir + "/" + logsDir + "/" + LogID{topicA, f.logs[rng.IntN(len(f.logs))]}.String() + "/"
}

// boundaryOf is where one of the batches in b begins; the end if it has none.
func boundaryOf(rng *rand.Rand, b []byte) int {
	at := []int{}
	for rest := b; len(rest) > 0; {
		at = append(at, len(b)-len(rest))
		_, next, err := record.Next(rest)
		if err != nil {
			break
		}
		rest = next
	}
	if len(at) == 0 {
		return len(b)
	}
	return at[rng.IntN(len(at))]
}
