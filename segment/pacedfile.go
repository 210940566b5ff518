package segment

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// pacedFile reads a file forwards in pieces, and waits after each so that the
// scrubber keeps its rate. A scanner looks a little ahead for headers and comes
// back for the bodies; the end of the piece before is kept for that, so that
// nothing is read twice.
type pacedFile struct {
	c      *scrubber
	f      io.ReaderAt
	closer io.Closer
	path   string
	direct bool
	paced  bool
	limit  int64 // nothing at or behind it is asked for

	buf  []byte
	free func()
	at   int64 // position of buf[0]
	n    int   // valid bytes
}

// alignment of direct reads: what the kernel wants on every disk that we know.
const alignment = 4096

func (c *scrubber) open(path string, limit int64, paced bool) (*pacedFile, error) {
	p := &pacedFile{c: c, path: path, limit: limit, paced: paced}
	if c.store.disk.real {
		p.f, p.closer, p.direct = openDirect(path)
	}
	if !p.direct {
		f, err := c.store.disk.open(path, false)
		if err != nil {
			return nil, err
		}
		p.f, p.closer = f, f
	}
	p.buf, p.free = directBuffer(scanChunk + windowSize)
	return p, nil
}

func (p *pacedFile) close() {
	_ = p.closer.Close()
	p.free()
}

func (p *pacedFile) ReadAt(b []byte, at int64) (int, error) {
	done := 0
	for done < len(b) {
		pos := at + int64(done)
		if pos < p.at || pos >= p.at+int64(p.n) {
			if err := p.fill(pos); err != nil {
				return done, err
			}
		}
		n := copy(b[done:], p.buf[pos-p.at:p.n])
		if n == 0 {
			return done, io.ErrUnexpectedEOF
		}
		done += n
	}
	return done, nil
}

// fill reads the piece that holds pos.
func (p *pacedFile) fill(pos int64) error {
	if err := p.c.ctx.Err(); err != nil {
		return err
	}
	from, keep := pos/alignment*alignment, 0
	if end := p.at + int64(p.n); p.n > 0 && from == end {
		keep = min(p.n, scanChunk)
		copy(p.buf, p.buf[p.n-keep:p.n])
	}
	p.at = from - int64(keep)
	want := windowSize
	rate := p.c.store.o.ScrubBytesPerSecond
	if p.paced && rate > 0 {
		want = int(min(max(rate/scrubPieces, alignment), int64(want)))
	}
	if left := p.limit - from; int64(want) > left {
		want = int((left + alignment - 1) / alignment * alignment)
	}
	piece := p.buf[keep:][:want/alignment*alignment]
	n, err := p.f.ReadAt(piece, from)
	if p.direct && errors.Is(err, syscall.EINVAL) { // the file system promised more than it does
		f, errOpen := p.c.store.disk.open(p.path, false)
		if errOpen != nil {
			return errOpen
		}
		_ = p.closer.Close()
		p.f, p.closer, p.direct = f, f, false
		n, err = f.ReadAt(piece, from)
	}
	p.n = keep + n
	if pos >= p.at+int64(p.n) {
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return io.ErrUnexpectedEOF
	}
	if p.paced {
		scrubBytes.Add(n)
		return p.c.pause(n)
	}
	return nil
}

// pause waits as long as n bytes may take. Suspects do not wait for a pass to
// end, which may take days; looking at them does not pause.
func (c *scrubber) pause(n int) error {
	rate := c.store.o.ScrubBytesPerSecond
	if rate == 0 {
		return nil
	}
	timer := c.store.o.Clock.NewTimer(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			return nil
		case <-c.wake:
			c.lookAtSuspects()
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}
