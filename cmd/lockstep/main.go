// Command lockstep is a Kafka-compatible server that mirrors topics from other
// Kafka clusters byte for byte, and the tools that go with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of every subcommand.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks an error of the command line, which exits with exitUsage.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, filepath.Base(os.Args[0]), os.Args[1:])
	stop()
	os.Exit(code)
}

// run executes one command line. Under the names of Kafka's mirror scripts the
// binary is the mirrors subcommand.
func run(ctx context.Context, name string, args []string) int {
	switch name {
	case "kafka-mirror.sh", "kafka-mirrors.sh", "kafka-cluster-mirrors.sh":
		args = append([]string{"mirrors"}, args...)
	}
	root := newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(os.Stderr, "Error:", err)
	var usage usageError
	// cobra checks required flags itself and has no type for what it finds.
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "required flag") {
		return exitUsage
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "lockstep",
		Short:         "A Kafka-compatible server that mirrors topics byte for byte, offset for offset, epoch for epoch",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; see lockstep --help", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newServerCommand(),
		newMirrorsCommand(),
		newACLsCommand(),
		newDumpLogCommand(),
		newRepairCommand(),
		newControllersCommand(),
		newMetadataCommand(),
		newPerfCommand(),
		newVerifyCommand(),
		newDemoCommand(),
	)
	return root
}
