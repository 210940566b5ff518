package main

import "github.com/spf13/cobra"

// newPerfCommand is the load generator.
func newPerfCommand() *cobra.Command {
	return &cobra.Command{Use: "perf", Short: "Generate load and measure it"}
}
