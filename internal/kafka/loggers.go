package kafka

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Levels of loggers (KIP-412) are this process's own: they are not stored. There is
// one logger here, the root of all.

const (
	resourceLogger controller.ConfigResource = 8
	rootLogger                               = "root"
)

// levels are Kafka's names in its order, and what they mean here: slog has neither
// TRACE nor FATAL.
var levels = []struct {
	name  string
	level slog.Level
}{
	{"DEBUG", slog.LevelDebug}, {"INFO", slog.LevelInfo}, {"WARN", slog.LevelWarn}, {"ERROR", slog.LevelError},
	{"TRACE", slog.LevelDebug}, {"FATAL", slog.LevelError},
}

// checkLoggers refuses what is not this broker's, or has no logger to tell.
func (s *Server) checkLoggers(broker string) error {
	id, err := strconv.ParseInt(broker, 10, 32)
	switch {
	case err != nil:
		return fmt.Errorf("%w: broker %q is not a number", controller.ErrInvalidRequest, broker)
	case int32(id) != s.o.NodeID:
		return fmt.Errorf("%w: broker %d; this is broker %d", controller.ErrInvalidRequest, id, s.o.NodeID)
	case s.o.LogLevel == nil:
		return fmt.Errorf("%w: the level of this broker's log is fixed", controller.ErrInvalidRequest)
	}
	return nil
}

func (s *Server) loggers(broker string) ([]configEntry, error) {
	if err := s.checkLoggers(broker); err != nil {
		return nil, err
	}
	now := s.o.LogLevel.Level().String()
	return []configEntry{{name: rootLogger, value: &now, source: kmsg.ConfigSourceDynamicBrokerLoggerConfig}}, nil
}

// alterLoggers sets levels, all of them or none.
func (s *Server) alterLoggers(a *controller.AlterConfigs, validateOnly bool) error {
	if err := s.checkLoggers(a.Name); err != nil {
		return err
	}
	set := s.o.LogLevel.Level()
	seen := map[string]bool{}
	for _, op := range a.Ops {
		if seen[op.Name] {
			return fmt.Errorf("%w: %s stands twice", controller.ErrInvalidRequest, op.Name)
		}
		seen[op.Name] = true
		level, err := loggerLevel(op)
		if err != nil {
			return err
		}
		set = level
	}
	if before := s.o.LogLevel.Level(); !validateOnly && set != before {
		s.o.LogLevel.Set(set)
		s.o.Logger.Warn("log level changed", "logger", rootLogger, "level", set, "before", before)
	}
	return nil
}

func loggerLevel(op controller.ConfigOp) (slog.Level, error) {
	switch {
	case op.Op != controller.ConfigSet && op.Op != controller.ConfigDelete:
		return 0, fmt.Errorf("%w: a logger's level can be set, nothing else", controller.ErrInvalidRequest)
	case op.Name != rootLogger:
		return 0, fmt.Errorf("%w: no logger %q; there is %s, for all", metadata.ErrInvalidConfig, op.Name, rootLogger)
	case op.Op == controller.ConfigDelete:
		return 0, fmt.Errorf("%w: the level of %s cannot be removed, only set", controller.ErrInvalidRequest, rootLogger)
	case op.Value == nil:
		return 0, fmt.Errorf("%w: %s: needs a value", controller.ErrInvalidRequest, op.Name)
	}
	var names []string
	for _, l := range levels {
		if l.name == *op.Value {
			return l.level, nil
		}
		names = append(names, l.name)
	}
	return 0, fmt.Errorf("%w: %s=%q: must be one of %s", metadata.ErrInvalidConfig, op.Name, *op.Value, strings.Join(names, ", "))
}
