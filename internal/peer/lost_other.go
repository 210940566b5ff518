//go:build !linux

package peer

import (
	"net"
	"time"
)

// ackLimit needs Linux' TCP_USER_TIMEOUT; elsewhere only silent connections are found.
func ackLimit(*net.TCPConn, time.Duration) {}
