package main

import (
	"fmt"
	"io"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// openAudit opens the audit log; nil: none is wanted. A file that cannot be
// written is found now and not at the first line.
func openAudit(cfg *config.Config) (io.WriteCloser, error) {
	path := cfg.String("audit.log.path")
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("audit.log.path: %w", err)
	}
	const mib = 1 << 20
	return &lumberjack.Logger{
		Filename: path, MaxSize: int(cfg.Int("audit.log.max.bytes") / mib), MaxBackups: int(cfg.Int("audit.log.max.files")),
	}, nil
}
