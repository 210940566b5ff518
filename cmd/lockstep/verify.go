package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// errNotEqual is the outcome of a comparison that worked and found something.
var errNotEqual = errors.New("source and mirror are not equal")

// newVerifyCommand is the comparison of a mirror with its source.
func newVerifyCommand() *cobra.Command {
	var source, mirror, sourceConfig, mirrorConfig, topics string
	var asJSON, complete, following bool
	var follow verifyFollow
	cmd := &cobra.Command{
		Use:   "verify --source HOST:PORT --mirror HOST:PORT",
		Short: "Compare a mirror with its source, byte for byte",
		Long: `Reads every partition from both clusters and compares the batches byte for byte,
over the range of offsets that both sides have. Prints what was compared, and
the first difference of each partition with both headers. Changes nothing.

With --follow it goes on: what is new is compared round after round, not faster
than --rate, until it is interrupted. It prints what has changed, and a
line per minute if nothing has; --listen serves metrics, among them the offset up to which each
partition is verified. With --json it prints a line for each partition whose
verified offset or result has changed.

Exit code 0: everything compared is equal; 1: a difference, a missing partition
or an error; 2: wrong usage.`,
		Example: `  lockstep verify --source :9091 --mirror :9094
  lockstep verify --source kafka:9093 --source-config client.properties --mirror :9094 --topics 'orders.*' --json
  lockstep verify --source :9091 --mirror :9094 --follow --rate 10000000 --listen :9464`,
		Args: noArguments,
	}
	flags := cmd.Flags()
	flags.StringVar(&source, "source", "", "source cluster, `host:port[,host:port]`")
	flags.StringVar(&mirror, "mirror", "", "mirror cluster, `host:port[,host:port]`")
	flags.StringVar(&sourceConfig, "source-config", "", "client properties `file` for the source (TLS, SASL)")
	flags.StringVar(&mirrorConfig, "mirror-config", "", "client properties `file` for the mirror")
	flags.StringVar(&topics, "topics", "", "only topics whose whole name matches this `regex` (default: all that are not internal)")
	flags.BoolVar(&complete, "complete", false, "also fail if the mirror is behind")
	flags.BoolVar(&asJSON, "json", false, "print a JSON array; with --follow, JSON lines")
	flags.BoolVar(&following, "follow", false, "compare on and on, until interrupted")
	flags.DurationVar(&follow.interval, "interval", 10*time.Second, "wait between rounds that found nothing new; with --follow")
	flags.Int64Var(&follow.rate, "rate", 0, "read at most this many `bytes` per second from each cluster; 0: no limit")
	flags.StringVar(&follow.listen, "listen", "", "serve /metrics at this `host:port`; with --follow")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if source == "" || mirror == "" {
			return usageError{errors.New("--source and --mirror are required")}
		}
		o, err := verifyOptions(source, sourceConfig, mirror, mirrorConfig, topics)
		if err != nil {
			return usageError{err}
		}
		if err := follow.check(); err != nil {
			return usageError{err}
		}
		o.Rate = follow.rate
		if following {
			follow.json = asJSON
			report, err := follow.run(cmd.Context(), o, cmd.OutOrStdout())
			if err == nil && (report == nil || !report.OK()) {
				err = errNotEqual
			}
			return err
		}
		if flags.Changed("listen") || flags.Changed("interval") {
			return usageError{errors.New("--listen and --interval need --follow")}
		}
		report, err := verify.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		if asJSON {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			err = enc.Encode(report.Partitions)
		} else {
			err = report.Print(cmd.OutOrStdout())
		}
		if err != nil {
			return err
		}
		if !report.OK() || complete && !report.Complete() {
			return errNotEqual
		}
		return nil
	}
	return cmd
}

func verifyOptions(source, sourceConfig, mirror, mirrorConfig, topics string) (o verify.Options, err error) {
	if o.Source, err = verifyCluster(source, sourceConfig); err != nil {
		return o, fmt.Errorf("source: %w", err)
	}
	if o.Mirror, err = verifyCluster(mirror, mirrorConfig); err != nil {
		return o, fmt.Errorf("mirror: %w", err)
	}
	if topics != "" {
		if o.Topics, err = regexp.Compile("^(?:" + topics + ")$"); err != nil {
			return o, fmt.Errorf("--topics: %w", err)
		}
	}
	return o, nil
}

func verifyCluster(bootstrap, file string) (verify.Cluster, error) {
	props := map[string]string{}
	if file != "" {
		var err error
		if props, err = clientconfig.LoadFile(file); err != nil {
			return verify.Cluster{}, err
		}
	}
	props["bootstrap.servers"] = bootstrap
	cfg, err := clientconfig.Parse(props)
	if err != nil {
		return verify.Cluster{}, err
	}
	return verify.Cluster{Bootstrap: cfg.Bootstrap, Dialer: cfg.Dialer("lockstep-verify")}, nil
}
