//go:build unix

package main

import "golang.org/x/sys/unix"

// descriptorLimit is how many descriptors this process may have; Go raises the
// soft limit to the hard one when it starts.
func descriptorLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}
