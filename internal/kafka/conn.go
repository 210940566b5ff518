package kafka

import "net"

// conn is one client connection and the state of its goroutine.
type conn struct {
	server *Server
	nc     net.Conn
	host   string // "/" and the peer's IP, as Kafka prints it
}
