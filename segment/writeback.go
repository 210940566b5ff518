package segment

import "sync"

// writebackStep is after how many unsynced bytes of a segment the kernel is told to
// begin to write them.
const writebackStep = 1 << 20

// writeback is the goroutine that has the kernel write appended bytes long before a
// flush. A flush that finds the appends of a whole FlushInterval not even begun
// queues so much at the disk that ext4, which reads its block bitmaps while it holds
// the file's lock, keeps appends waiting for as long as all that takes. It promises
// nothing: what is durable, and every error, is the flush's to tell.
//
// Where each append is flushed at once there is nothing for it to do.
type writeback struct {
	store *Store
	wake  chan struct{} // capacity 1
	done  chan struct{}

	// mu guards the queue and aheads: a segment is in it once, however often it is
	// noted.
	mu struct {
		sync.Mutex
		queue  []*segment
		closed bool
	}
}

// writebacker is a file that can be told to begin; one without is left to its flush.
type writebacker interface{ startWriteback(at, n int64) }

func (f osFile) startWriteback(at, n int64) { startWriteback(f.File, at, n) }

// ahead is a segment's part of it.
type ahead struct {
	noted int64 // bytes that were ever asked for; guarded by the log's wr

	// Guarded by writeback.mu.
	begun, wanted int64
	queued        bool
}

func newWriteback(s *Store) *writeback {
	return &writeback{store: s, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// note is told of each append, before the segment grows by it, under wr: that one
// may be flushed at once, those before it should have been. The piece that the next
// append goes on in is left alone: it would have to wait for it.
func (w *writeback) note(seg *segment, size int64) {
	a := &seg.ahead
	size -= size % writePiece
	if size-a.noted < writebackStep {
		return
	}
	seg.log.mu.RLock()
	synced := seg.synced
	seg.log.mu.RUnlock()
	if a.noted = max(a.noted, synced-synced%writePiece); size-a.noted < writebackStep {
		return
	}
	from := a.noted
	a.noted = size
	w.mu.Lock()
	queued := a.queued
	if !queued {
		a.begun, a.queued = from, true
		w.mu.queue = append(w.mu.queue, seg)
	}
	a.wanted = size
	w.mu.Unlock()
	if !queued {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// run is the goroutine, until close.
func (w *writeback) run() {
	defer close(w.done)
	var segs []*segment
	for range w.wake {
		w.mu.Lock()
		segs, w.mu.queue = w.mu.queue, segs[:0]
		closed := w.mu.closed
		w.mu.Unlock()
		if closed {
			return
		}
		for _, seg := range segs {
			w.begin(seg)
		}
		clear(segs)
	}
}

func (w *writeback) begin(seg *segment) {
	a := &seg.ahead
	w.mu.Lock()
	from, to := a.begun, a.wanted
	a.queued = false
	w.mu.Unlock()
	h, err := w.store.files.acquire(seg)
	if err != nil {
		return // removed meanwhile, say; else the next append or flush meets it too
	}
	defer h.release()
	if f, ok := h.dataFile.(writebacker); ok {
		f.startWriteback(from, to-from)
	}
}

func (w *writeback) close() {
	w.mu.Lock()
	w.mu.closed = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	<-w.done
}
