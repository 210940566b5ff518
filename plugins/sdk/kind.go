package sdk

import (
	"context"
	"net"
)

// Kind is something a plugin process can be to a broker.
type Kind string

// The kinds, as they are written in a broker's configuration.
const (
	KindTruncation      Kind = "truncation"
	KindUncleanElection Kind = "unclean-election"
	KindTransport       Kind = "transport"
)

// DialFunc gets a stream of bytes to a broker's address, however it likes:
// through a proxy, a tunnel, a one-way link. It has the shape of
// net.Dialer.DialContext. What flows over the stream is the Kafka protocol,
// TLS included; the plugin never has to read it.
//
// ctx covers the dialling, not the life of the connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)
