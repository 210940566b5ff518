package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/cores"
)

func newServerCommand() *cobra.Command {
	var (
		file           string
		overrides      []string
		printConfig    bool
		printReference bool
		addScram       []string
	)
	c := &cobra.Command{
		Use:   "server",
		Short: "Run a broker with its controller",
		Long: "Run a broker with its controller. Without a file it listens on 127.0.0.1:9092, keeps data in\n" +
			"./lockstep-data, and serves /metrics, /livez and /readyz on 127.0.0.1:9644.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if printReference {
				config.PrintReference(cmd.OutOrStdout())
				return nil
			}
			cfg, err := config.Load(file, overrides)
			if err != nil {
				return usageError{err}
			}
			if printConfig {
				cfg.Print(cmd.OutOrStdout())
				return nil
			}
			var users []*firstUser
			for _, text := range addScram {
				u, err := parseFirstUser(text)
				if err != nil {
					return usageError{err}
				}
				users = append(users, u)
			}
			return serve(cmd.Context(), cfg, users, cmd.OutOrStdout())
		},
	}
	c.Flags().StringVar(&file, "config", "", "properties file with Kafka's key names")
	c.Flags().StringArrayVar(&overrides, "override", nil, "key=value that wins over the file; may be repeated")
	c.Flags().StringArrayVar(&addScram, "add-scram", nil, "SCRAM-SHA-256=[name=NAME,password-file=FILE] (or password=…, and SCRAM-SHA-512): a first user, if not there yet; may be repeated")
	c.Flags().BoolVar(&printConfig, "print-config", false, "print the effective configuration with origins, and exit")
	c.Flags().BoolVar(&printReference, "print-reference", false, "print a commented template of all keys, and exit")
	return c
}

func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments, got %q", c.CommandPath(), args)}
	}
	return nil
}

// stopTimeout bounds the end of a start that failed; server.stop.timeout.ms that
// of a server. What is not finished by then is cut, and recovery at the next start
// does the rest.
const stopTimeout = 10 * time.Second

func serve(ctx context.Context, cfg *config.Config, users []*firstUser, out io.Writer) error {
	cores.AddSpare()
	level := new(slog.LevelVar)
	level.Set(logLevel(cfg.String("log.level")))
	logger := newLogger(cfg, level, os.Stderr)
	for _, w := range cfg.Warnings {
		logger.Warn(w)
	}
	if warning, err := checkDescriptors(cfg); err != nil {
		return err
	} else if warning != "" {
		logger.Warn(warning)
	}
	b, err := startBroker(ctx, cfg, level, logger, users...)
	if err != nil {
		return err
	}
	for _, e := range b.endpoints {
		fmt.Fprintf(out, "Lockstep node %d of cluster %s listens on %s://%s:%d\n", b.nodeID, b.clusterID, e.Name, e.Host, e.Port)
	}
	if b.adminAddr != "" {
		fmt.Fprintf(out, "Metrics and health on http://%s\n", b.adminAddr)
	}
	select {
	case <-ctx.Done():
		logger.Info("stopping")
	case err = <-b.failed:
		logger.Error("stopping after a failure", "err", err)
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Duration("server.stop.timeout.ms"))
	defer cancel()
	if stopErr := b.stop(stopCtx); err == nil {
		err = stopErr
	}
	return err
}

// logLevel reads a value of log.level, which was checked.
func logLevel(text string) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		level = slog.LevelInfo
	}
	return level
}

func newLogger(cfg *config.Config, level slog.Leveler, w *os.File) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	format := cfg.String("log.format")
	if format == "auto" {
		format = "json"
		if s, err := w.Stat(); err == nil && s.Mode()&os.ModeCharDevice != 0 {
			format = "text"
		}
	}
	if format == "text" {
		return slog.New(limitLog(slog.NewTextHandler(w, o)))
	}
	return slog.New(limitLog(slog.NewJSONHandler(w, o)))
}
