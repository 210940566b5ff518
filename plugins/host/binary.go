package host

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrChecksum says that a plugin's file is not the one that was configured.
var ErrChecksum = errors.New("checksum differs")

// openBinary opens a plugin's executable and checks it. The file stays open and
// is what gets executed (runner.go), so that a link or a file put in its place
// after the check changes nothing. go-plugin's own SecureConfig reads by path.
func openBinary(path, sum string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := checkBinary(f, sum); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func checkBinary(f *os.File, sum string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Mode().Perm()&0o111 == 0:
		return errors.New("is not executable")
	case info.Mode().Perm()&0o022 != 0:
		// Whoever may write the file could do so between check and execution.
		return fmt.Errorf("may be written by its group or others (mode %04o): chmod go-w", info.Mode().Perm())
	}
	want, err := hex.DecodeString(sum)
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := h.Sum(nil); subtle.ConstantTimeCompare(got, want) != 1 {
		return fmt.Errorf("%w: the file has %x, configured is %x", ErrChecksum, got, want)
	}
	return nil
}
