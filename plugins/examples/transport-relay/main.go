// Transport-relay reaches the brokers of a source by TCP, from a process of its
// own. That is where a real transport does something clever: a proxy, a tunnel,
// another network namespace, credentials that the broker must not have.
//
//	plugin.relay.path=/usr/lib/lockstep/transport-relay
//	plugin.relay.sha256=…
//	plugin.relay.args=-map kafka-1.internal:9092=gateway:19092
//	plugin.transport.<mirror>=relay
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"strings"

	"github.com/lockstep-kafka/lockstep/plugins/serve"
)

func main() {
	r := relay{}
	flag.Var(r, "map", "advertised=reachable: dial another address than the one a broker tells (may be repeated)")
	flag.Parse()
	serve.Run(serve.Plugin{Name: "transport-relay", Version: "1", Dial: r.dial})
}

// relay maps addresses as brokers advertise them to those that are dialled.
type relay map[string]string

func (r relay) String() string { return "" }

func (r relay) Set(s string) error {
	from, to, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("want advertised=reachable")
	}
	r[from] = to
	return nil
}

func (r relay) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if to, ok := r[address]; ok {
		address = to
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}
