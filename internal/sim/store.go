package sim

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// store is the metadata store, which stands for etcd (D22): one history of revisions,
// transactions that compare and write at once, watches that come late and in order,
// and an office that one controller holds for as long as its lease lasts.
type store struct {
	w        *World
	proc     proc // where messages to it go; it never ends
	images   []*metadata.Image
	builder  *controller.Images
	chain    int64
	holder   *office
	elected  int64 // revision of the holder's election
	lease    time.Duration
	watchers []*watch
}

const storeNode = 200

func newStore(w *World) *store {
	s := &store{w: w, builder: controller.NewImages(), proc: proc{node: storeNode, up: true}}
	img, _ := s.builder.Apply(nil, 1)
	s.images = []*metadata.Image{nil, img}
	return s
}

func (s *store) revision() int64        { return int64(len(s.images) - 1) }
func (s *store) image() *metadata.Image { return s.images[len(s.images)-1] }

type txn struct {
	elected, chain int64
	changes        []controller.Change
	cuts           []controller.Cut
}

type txnResult struct {
	revision, chain int64
	ok, deposed     bool
}

// commit is one transaction: it compares the election and the chain, as term.commit.
func (s *store) commit(t txn) txnResult {
	if s.elected != t.elected || s.holder == nil {
		return txnResult{deposed: true}
	}
	if s.chain != t.chain {
		return txnResult{}
	}
	before := s.image()
	rev := s.revision() + 1
	img, err := s.builder.Apply(t.changes, rev)
	if err != nil {
		s.w.check.fail("STORE", "changes that make no image: %v", err)
		return txnResult{}
	}
	s.images = append(s.images, img)
	s.chain = rev
	s.w.loop.note("commit", rev, int64(len(t.changes)), int64(s.holder.id))
	s.w.check.committed(before, img, t.cuts)
	for _, w := range s.watchers {
		w.news()
	}
	return txnResult{revision: rev, chain: rev, ok: true}
}

// campaign gives the office to whoever asks if nobody holds it, its lease is over, or
// its process is gone and somebody saw its port closed.
func (s *store) campaign(o *office) int64 {
	if s.holder != nil && s.holder != o && s.w.loop.now < s.lease && (s.holder.proc.up || s.w.loop.chance(0.5)) {
		return 0
	}
	s.images = append(s.images, nil)
	rev := s.revision()
	s.images[rev], _ = s.builder.Apply(nil, rev)
	s.holder, s.elected, s.lease = o, rev, s.w.loop.now+leaseTTL
	s.w.loop.note("office", int64(o.id), rev)
	for _, w := range s.watchers {
		w.news()
	}
	return rev
}

const leaseTTL = 2 * time.Second

func (s *store) keepAlive(elected int64) bool {
	if s.elected != elected || s.holder == nil || s.w.loop.now > s.lease {
		if s.elected == elected {
			s.holder = nil
		}
		return false
	}
	s.lease = s.w.loop.now + leaseTTL
	return true
}

// watch is one process' view of the history.
type watch struct {
	s      *store
	p      *proc
	seen   int64
	moving bool
	apply  func(prev, next *metadata.Image)
	gen    int
	office *office // the holder as this process knows
}

// follow begins at the newest image.
func (s *store) follow(p *proc, apply func(prev, next *metadata.Image)) *watch {
	w := &watch{s: s, p: p, apply: apply, gen: p.gen}
	kept := s.watchers[:0]
	for _, o := range s.watchers {
		if o.p.up && o.p.gen == o.gen {
			kept = append(kept, o)
		}
	}
	s.watchers = append(kept, w)
	w.news()
	return w
}

func (w *watch) news() {
	if w.moving || !w.p.up || w.p.gen != w.gen || w.seen >= w.s.revision() {
		return
	}
	w.moving = true
	d, ok := w.s.w.net.delay(storeNode, w.p.node)
	if !ok {
		d = 100*time.Millisecond + w.s.w.loop.between(0, 100*time.Millisecond)
	}
	w.s.w.loop.after(d, w.p, func() {
		w.moving = false
		if ok {
			next := w.s.revision()
			if w.seen > 0 && w.s.w.loop.chance(0.7) {
				next = w.seen + 1
			}
			var prev *metadata.Image
			if w.seen > 0 {
				prev = w.s.images[w.seen]
			}
			w.seen, w.office = next, w.s.holder
			w.apply(prev, w.s.images[next])
		}
		w.news()
	})
}
