package serve

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// socket listens where accept expects it.
func socket(t *testing.T) *net.UnixListener {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Another process than the broker gets no byte of a connection.
func TestAcceptRefusesStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		parent int
		want   string
	}{
		"broker":   {os.Getpid(), ""},
		"stranger": {1, "not the host 1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := socket(t)
			client, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			got, err := (&relayServer{parent: c.parent}).accept(l)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				got.Close()
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("the client read %d bytes, %v", n, err)
			}
			if _, err := os.Lstat(l.Addr().String()); !os.IsNotExist(err) {
				t.Errorf("the socket is still there: %v", err)
			}
		})
	}
}

// A stream without half-close (TLS and its like may lack one) ends as a whole,
// and what the broker had sent arrives before.
func TestRelayWithoutHalfClose(t *testing.T) {
	l := socket(t)
	broker, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	local, err := (&relayServer{parent: os.Getpid()}).accept(l)
	if err != nil {
		t.Fatal(err)
	}
	remote, far := net.Pipe()
	done := make(chan struct{})
	go func() { relay(local, remote); close(done) }()
	go func() {
		broker.Write([]byte("request"))
		broker.(*net.UnixConn).CloseWrite()
	}()
	if got, err := io.ReadAll(far); string(got) != "request" || err != nil {
		t.Errorf("arrived: %q, %v", got, err)
	}
	<-done
	if _, err := broker.Read(make([]byte, 1)); err == nil {
		t.Error("the broker's side is still open")
	}
}
