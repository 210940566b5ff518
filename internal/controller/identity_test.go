package controller

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"net"
	"testing"
)

// Nodes' certificates are of one name, and etcd's client asks for the address: a
// broker without a controller could not reach the store at 127.0.0.1. It takes the
// nodes of its cluster at any address, and those of no other.
func TestStoreTLS(t *testing.T) {
	identityOf := func(key string, node int32) *identity {
		t.Helper()
		id, err := newIdentity(bytes.Repeat([]byte(key), 32), node, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	shake := func(server, client *identity) error {
		// Not net.Pipe: a refusal and what the server still writes would wait for each other.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		b, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		cfg := client.storeTLS()
		cfg.ServerName = "127.0.0.1" // as etcd's client sets it
		go func() { _ = tls.Server(a, server.serverTLS()).Handshake() }()
		return tls.Client(b, cfg).Handshake()
	}
	if err := shake(identityOf("k", 1), identityOf("k", 4)); err != nil {
		t.Errorf("a node of the cluster is refused: %v", err)
	}
	if err := shake(identityOf("x", 1), identityOf("k", 4)); err == nil {
		t.Error("a node of another cluster is taken")
	}
}
