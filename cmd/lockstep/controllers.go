package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// controllersTimeout bounds one of these commands: a change of the quorum waits
// until a majority has it.
const controllersTimeout = 30 * time.Second

func newControllersCommand() *cobra.Command {
	var file string
	var overrides []string
	c := &cobra.Command{
		Use:   "controllers",
		Short: "List, add and remove the controllers that hold a cluster's metadata",
		Long: `List, add and remove the controllers that hold a cluster's metadata.

It takes the configuration file of any node of the cluster: controller.quorum.voters
or controller.quorum.bootstrap.servers say where the controllers are, and
cluster.secret is what lets it in. A majority of them must be there.

A controller whose configuration names the others joins by itself when it is
started; add is for announcing one beforehand. It follows as a learner, which has
no vote, and becomes a controller when it has caught up.

remove is for one that is gone for good, or that has lost its directory: without
that it would count as one that fails.`,
		Example: `  lockstep controllers list --config server.properties
  lockstep controllers remove 3 --config server.properties`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&file, "config", "", "properties file of a node of the cluster")
	c.PersistentFlags().StringArrayVar(&overrides, "override", nil, "key=value that wins over the file; may be repeated")
	with := func(fn func(ctx context.Context, out io.Writer, a *controller.Admin, args []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(file, overrides)
			if err != nil {
				return usageError{err}
			}
			o := controller.Options{Dir: "metadata"} // nothing is opened in it
			if err := cfg.Quorum(&o); err != nil {
				return usageError{err}
			}
			if o.Secret == "" {
				return usageError{errors.New("cluster.secret: is not set, so this node has no other controllers")}
			}
			a, err := controller.OpenAdmin(o)
			if err != nil {
				return err
			}
			defer a.Close()
			ctx, cancel := context.WithTimeout(c.Context(), controllersTimeout)
			defer cancel()
			return fn(ctx, c.OutOrStdout(), a, args)
		}
	}
	c.AddCommand(
		&cobra.Command{Use: "list", Short: "Print the controllers", Args: cobra.NoArgs,
			RunE: with(func(ctx context.Context, out io.Writer, a *controller.Admin, _ []string) error {
				return listControllers(ctx, out, a)
			})},
		&cobra.Command{Use: "add NODE@HOST:PORT", Short: "Announce a controller that is about to be started", Args: oneArgument("NODE@HOST:PORT"),
			RunE: with(func(ctx context.Context, _ io.Writer, a *controller.Admin, args []string) error {
				return a.Add(ctx, args[0])
			})},
		&cobra.Command{Use: "remove NODE", Short: "Take a controller out that is gone for good, by number or HOST:PORT", Args: oneArgument("NODE or HOST:PORT"),
			RunE: with(func(ctx context.Context, _ io.Writer, a *controller.Admin, args []string) error {
				return a.Remove(ctx, args[0])
			})},
	)
	return c
}

func oneArgument(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("controllers: %s wants one argument, %s", c.Name(), what)}
		}
		return nil
	}
}

func listControllers(ctx context.Context, out io.Writer, a *controller.Admin) error {
	members, err := a.List(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tADDRESS\tROLE")
	for _, m := range members {
		node, role := strconv.Itoa(int(m.Node)), "voter"
		switch {
		case m.Active:
			role = "voter, active"
		case m.Node < 0:
			node, role = "-", "learner, not started yet"
		case m.Learner:
			role = "learner"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", node, m.Addr, role)
	}
	return w.Flush()
}
