package controller

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// Of two connections to a peer the one that receives something stays, and so does a
// silent one to somebody else. The other ends for who reads it, as an end of file.
func TestCloseSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	connect := func(l net.Listener) (c, s net.Conn) {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if s, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); s.Close() })
		return c, s
	}
	silent, _ := connect(l)
	spoken, speaker := connect(l)
	foreign, _ := connect(other)
	peer := l.Addr().(*net.TCPAddr).AddrPort()
	to := func(p netip.AddrPort) bool { return p == peer }
	if n := closeSilent(to, time.Minute); n != 0 {
		t.Errorf("%d closed at once", n)
	}
	const limit = 300 * time.Millisecond
	closed := 0
	for deadline := time.Now().Add(10 * time.Second); closed == 0 && time.Now().Before(deadline); {
		if _, err := speaker.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := spoken.Read(make([]byte, 1)); err != nil {
			t.Fatalf("the one that is spoken on: %v", err)
		}
		closed += closeSilent(to, limit)
		time.Sleep(10 * time.Millisecond) // the kernel's clock measures the silence
	}
	if closed != 1 {
		t.Fatalf("%d closed, want 1", closed)
	}
	read := func(c net.Conn) error {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		return err
	}
	if err := read(silent); err == nil || timedOut(err) {
		t.Errorf("the silent one: %v", err)
	}
	for name, c := range map[string]net.Conn{"spoken": spoken, "foreign": foreign} {
		if err := read(c); !timedOut(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func timedOut(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}
