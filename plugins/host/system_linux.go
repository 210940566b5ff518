package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// prepare makes cmd execute the open file bin, as descriptor 3 of the child, in
// a process group of its own (a Ctrl-C in the broker's terminal is the
// broker's to handle) and with a parent-death signal.
func prepare(cmd *exec.Cmd, bin *os.File) {
	cmd.Path = "/proc/self/fd/3"
	cmd.ExtraFiles = []*os.File{bin}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// checkDir refuses a directory in which others could place or read sockets.
func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to the broker's user %d", dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to others (mode %04o): chmod 700", dir, info.Mode().Perm())
	}
	return nil
}

// lockFile takes an exclusive lock that the kernel drops with the process.
// errLocked: its owner lives.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, err
	}
	return f, nil
}
