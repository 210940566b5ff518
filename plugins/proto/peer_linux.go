package proto

import (
	"net"

	"golang.org/x/sys/unix"
)

// PeerPID is the process at the other end of a unix socket, as the kernel noted
// it at connect or listen. The certificates of gRPC do not cover these sockets,
// so this is what tells the expected process from another one of the same user.
func PeerPID(c *net.UnixConn) (pid int, known bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, true, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = credErr
	}
	if err != nil {
		return 0, true, err
	}
	return int(cred.Pid), true, nil
}
