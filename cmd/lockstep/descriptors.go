package main

import (
	"fmt"
	"syscall"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// descriptorsOfOurs are for segments, the index, etcd and the admin listener.
const descriptorsOfOurs = 1000

// checkDescriptors compares max.connections with what the process may open; the
// runtime has raised that to the hard limit already. A limit that an operator
// asked for and that cannot be had is an error, the default a warning.
func checkDescriptors(cfg *config.Config) (warning string, err error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return "", nil // not a limit we could pass then
	}
	return compareDescriptors(cfg.Int("max.connections"), cfg.IsSet("max.connections"), limit.Max)
}

func compareDescriptors(connections int64, asked bool, limit uint64) (warning string, err error) {
	need := uint64(connections) + descriptorsOfOurs
	if need <= limit {
		return "", nil
	}
	text := fmt.Sprintf("max.connections: %d connections and %d files of the server need more than the %d descriptors that the process may open (ulimit -Hn)",
		connections, descriptorsOfOurs, limit)
	if asked {
		return "", fmt.Errorf("%s", text)
	}
	return text, nil
}
