package peer

import (
	"net"
	"time"
)

// endWhenLost has the kernel end a connection whose packets vanish for limit: it asks
// the other one while nothing is said (keep-alive), and gives up what is not acknowledged
// (where it can: ackLimit). Behind a proxy it asks the proxy. What is not TCP stays as it
// is, and so does a connection that has just ended.
func endWhenLost(nc net.Conn, limit time.Duration) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	// Asked after half of the time, and twice more in the other half. Kernels count in
	// whole seconds.
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: max(limit/2, time.Second), Interval: max(limit/4, time.Second), Count: 2})
	ackLimit(tcp, limit)
}
