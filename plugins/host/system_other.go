//go:build !linux

package host

import (
	"fmt"
	"os"
	"os/exec"
)

func prepare(cmd *exec.Cmd, bin *os.File) { cmd.Path = bin.Name() }

func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	return err
}

// lockFile finds every lock taken that exists: nothing is swept.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if os.IsExist(err) {
		return nil, errLocked
	}
	return f, err
}
