package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/segment"
)

// How records leave, measured on loopback (MB/s): one range of 1 MiB by
// sendfile 7 000, by read and write 2 400; 64 ranges of 16 KiB by sendfile
// 1 020, gathered in memory and written at once 5 300. So large ranges go from
// file to socket, and runs of small ones are gathered with the header bytes
// around them.
const (
	sendfileMin = 128 << 10
	gatherSize  = 1 << 20
)

// emptyView has no bytes and no file; releasing it does nothing.
var emptyView segment.View

// cut is a place in an answer's header bytes where records belong.
type cut struct {
	at   int // index in the header bytes
	view *segment.View
}

// sendRecords sends header bytes with the records of cuts in between, after
// everything that came before. A failure in the middle of a frame leaves a
// broken stream, so every error ends the connection.
func (c *conn) sendRecords(head []byte, cuts []cut) error {
	if !c.box.drain() {
		return net.ErrClosed
	}
	small := len(head)
	for i := range cuts {
		if n := cuts[i].view.Len(); !c.canSendfile(cuts[i].view) {
			small += n
		}
	}
	if len(cuts) == 0 {
		return c.write(head)
	}
	g := gatherer{conn: c}
	if small > 0 {
		buf := c.server.memory.get(min(max(roundUp(small), 1<<minPooled), gatherSize))
		defer c.server.memory.put(buf)
		g.buf = buf
	}
	if held := len(head) + cap(g.buf); held > 2*freeFrame {
		var err error
		if g.writing, err = c.enterAnswer(held); err != nil {
			return err
		}
		defer c.server.answers.leave(g.writing)
	}
	done := 0
	for i := range cuts {
		if err := g.bytes(head[done:cuts[i].at]); err != nil {
			return err
		}
		done = cuts[i].at
		if err := g.view(cuts[i].view); err != nil {
			return err
		}
	}
	if err := g.bytes(head[done:]); err != nil {
		return err
	}
	return g.flush()
}

// canSendfile tells whether a range goes from file to socket.
func (c *conn) canSendfile(v *segment.View) bool {
	if c.tcp == nil || v.Len() < sendfileMin {
		return false
	}
	_, ok := v.File()
	return ok
}

// gatherer collects small pieces and sends them with one write.
type gatherer struct {
	conn    *conn
	buf     []byte // at most gatherSize
	writing *writing
	check   sentCheck
}

func (g *gatherer) flush() error {
	if len(g.buf) == 0 {
		return nil
	}
	if invariants.Planted("bufferReusedEarly") {
		invariants.Poison(g.buf) // it went back to the pool before it was sent
	}
	g.check.sending(g.buf)
	err := g.conn.writePieces(g.buf, g.writing)
	g.buf = g.buf[:0]
	return err
}

func (g *gatherer) bytes(b []byte) error {
	for len(b) > 0 {
		if len(g.buf) == cap(g.buf) {
			if err := g.flush(); err != nil {
				return err
			}
		}
		n := min(len(b), cap(g.buf)-len(g.buf))
		g.buf = append(g.buf, b[:n]...)
		b = b[n:]
	}
	return nil
}

func (g *gatherer) view(v *segment.View) error {
	if g.conn.canSendfile(v) {
		if err := g.flush(); err != nil {
			return err
		}
		return g.conn.sendfile(v, g.writing)
	}
	for off := 0; off < v.Len(); {
		if len(g.buf) == cap(g.buf) {
			if err := g.flush(); err != nil {
				return err
			}
		}
		n := min(v.Len()-off, cap(g.buf)-len(g.buf))
		into := g.buf[len(g.buf) : len(g.buf)+n]
		if _, err := v.ReadAt(into, int64(off)); err != nil {
			g.conn.abort()
			return fmt.Errorf("read records to send: %w", err)
		}
		g.buf = g.buf[:len(g.buf)+n]
		g.check.gathered(g.buf, len(g.buf)-n)
		off += n
	}
	return nil
}

// sendfile sends a range from its file. The offset is explicit, because other
// connections send from the same file. The write deadline counts from the last
// progress.
func (c *conn) sendfile(v *segment.View, w *writing) error {
	file, _ := v.File()
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	src := int(file.Fd())
	off, left := v.Offset(), v.Len()
	for left > 0 {
		c.nc.SetWriteDeadline(time.Now().Add(c.server.o.WriteTimeout))
		var sent int
		var sendErr error
		err := raw.Write(func(dst uintptr) bool {
			for {
				sent, sendErr = unix.Sendfile(int(dst), src, &off, left)
				if !errors.Is(sendErr, syscall.EINTR) {
					break
				}
			}
			// Not writable: wait for it, within the deadline.
			return !errors.Is(sendErr, syscall.EAGAIN)
		})
		switch {
		case err != nil:
		case sendErr != nil:
			err = os.NewSyscallError("sendfile", sendErr)
		case sent == 0:
			err = fmt.Errorf("records at %d of %s: %w", off, file.Name(), io.ErrUnexpectedEOF)
		}
		if err != nil {
			c.abort()
			return fmt.Errorf("send records: %w", err)
		}
		left -= sent
		c.server.answers.advance(w)
	}
	return nil
}
