package peer

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// vanish has every packet to a socket vanish from now on, acknowledgements among them:
// its kernel neither answers nor says that nobody is there.
func vanish(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	prog := unix.SockFprog{Len: uint16(len(none)), Filter: &none[0]}
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// TestLostLink: a connection ends whose packets vanish, whether it waits for an answer or
// has just asked. Without that it would be read from for ever, and written to for a
// quarter of an hour.
func TestLostLink(t *testing.T) {
	for name, write := range map[string]bool{"waiting": false, "asking": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			w := newWorld(t, Options{Silence: time.Second})
			w.register(1, 1, b.addr)
			cl, err := w.Dial(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			b.mu.Lock()
			vanish(t, b.conns[0])
			b.mu.Unlock()
			conn := cl.Conn()
			began := time.Now()
			if write {
				if _, err := conn.Write([]byte("who is there")); err != nil {
					t.Fatal(err)
				}
			}
			if err := conn.SetReadDeadline(began.Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Read(make([]byte, 1))
			if took := time.Since(began); errors.Is(err, os.ErrDeadlineExceeded) && took >= 20*time.Second || !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("after %v: %v", took, err)
			}
		})
	}
}
