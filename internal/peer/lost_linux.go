package peer

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// ackLimit bounds how long sent bytes, and questions, may go unacknowledged. Without it
// the kernel sends them again for a quarter of an hour.
func ackLimit(tcp *net.TCPConn, limit time.Duration) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
