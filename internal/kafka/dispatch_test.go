package kafka

import (
	"net"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// FuzzDispatch: whatever a connection says, the server ends it or answers, and
// does not panic. The client hangs up behind its last byte.
func FuzzDispatch(f *testing.F) {
	o := testBroker(f).options(nil)
	o.AutoCreateTopics = false
	s, err := NewServer(o)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(f.Context()) })
	for _, a := range s.apis {
		if a == nil {
			continue
		}
		for _, version := range []int16{a.min, a.max} {
			req := wire.NewRequest(a.key)
			req.SetVersion(version)
			f.Add(wire.AppendRequest(nil, 1, "fuzz", req))
		}
	}
	before := s.metrics.panics.Get()
	f.Fuzz(func(t *testing.T, sent []byte) {
		client, server := net.Pipe()
		go func() {
			client.Write(sent) // an error: the server has read enough
			client.Close()
		}()
		newConn(s, s.listeners[0], server, "127.0.0.1").serve()
		if n := s.metrics.panics.Get() - before; n != 0 {
			t.Fatalf("a panic on %x", sent)
		}
	})
}
