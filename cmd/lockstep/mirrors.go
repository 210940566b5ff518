package main

import "github.com/spf13/cobra"

// newMirrorsCommand is the command line of cluster mirroring.
func newMirrorsCommand() *cobra.Command { return &cobra.Command{Use: "mirrors"} }
