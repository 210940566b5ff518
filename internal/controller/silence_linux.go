package controller

import (
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// closeSilent shuts down this process' connections to peers that match, on which nothing
// was received for limit, and answers how many. They are etcd's, which hands none of
// them out; the kernel knows them, and when each last received something. A duplicate
// of the descriptor is looked at and shut down: its number may be another file's a
// moment later.
func closeSilent(match func(peer netip.AddrPort) bool, limit time.Duration) (closed int) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	for _, entry := range dir {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || !match(peerOf(fd)) {
			continue
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue // it was closed meanwhile
		}
		if match(peerOf(own)) && silentFor(own) >= limit && unix.Shutdown(own, unix.SHUT_RDWR) == nil {
			closed++
		}
		_ = unix.Close(own)
	}
	return closed
}

// peerOf is whom a descriptor is connected to; the zero value if it is no connection.
func peerOf(fd int) netip.AddrPort {
	switch sa, _ := unix.Getpeername(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// silentFor is how long an established connection has received nothing.
func silentFor(fd int) time.Duration {
	const established = 1
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || info.State != established {
		return 0
	}
	return time.Duration(info.Last_data_recv) * time.Millisecond
}
