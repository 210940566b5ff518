package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/perf"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// newPerfCommand is the load generator.
func newPerfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "Generate load and measure it",
		Long: `Generates load and measures it. The loop is open: a schedule fixes when each record
is due, and latency counts from then, so that a stall shows in every record that
was due meanwhile. Every run is bounded by a number of records or a time.`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cmd.AddCommand(newPerfProduceCommand(), newPerfConsumeCommand(), newPerfNullMirrorCommand())
	return cmd
}

// perfTarget is the cluster that a load runs against, and the form of the report.
type perfTarget struct {
	bootstrap, config string
	asJSON            bool
}

func (t *perfTarget) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&t.bootstrap, "bootstrap-server", "127.0.0.1:9092", "`host:port[,host:port]`")
	flags.StringVar(&t.config, "command-config", "", "client properties `file` (TLS, SASL)")
	flags.BoolVar(&t.asJSON, "json", false, "print the report as JSON")
}

func (t *perfTarget) properties() (map[string]string, error) {
	props := map[string]string{}
	if t.config != "" {
		var err error
		if props, err = clientconfig.LoadFile(t.config); err != nil {
			return nil, err
		}
	}
	props["bootstrap.servers"] = t.bootstrap
	return props, nil
}

func (t *perfTarget) client() ([]kgo.Opt, error) {
	props, err := t.properties()
	if err != nil {
		return nil, err
	}
	cfg, err := clientconfig.Parse(props)
	if err != nil {
		return nil, err
	}
	return cfg.KgoOpts(), nil
}

// print writes the report; a run in which records failed has failed.
func (t *perfTarget) print(cmd *cobra.Command, r *perf.Report) error {
	var err error
	if t.asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.Print(cmd.OutOrStdout())
	}
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d errors, the first: %s", r.Errors, r.Error)
	}
	return err
}

func newPerfProduceCommand() *cobra.Command {
	var (
		target perfTarget
		o      perf.ProduceOptions
	)
	cmd := &cobra.Command{
		Use:   "produce --topic NAME",
		Short: "Write records at a rate",
		Example: `  lockstep perf produce --topic load --rate 20000 --record-size 1024 --duration 30s --warmup 5s
  lockstep perf produce --topic load --records 1000000 --record-size 100 --compression lz4 --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Topic == "" {
				return usageError{errors.New("--topic is required")}
			}
			var err error
			if o.Client, err = target.client(); err != nil {
				return usageError{err}
			}
			report, err := perf.Produce(cmd.Context(), o)
			if err != nil {
				return err
			}
			return target.print(cmd, report)
		},
	}
	target.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.Topic, "topic", "", "topic to write to; must exist")
	flags.Float64Var(&o.Rate, "rate", 0, "records per second over all clients; 0 is as fast as possible, and then latency counts from the send time")
	flags.Int64Var(&o.Records, "records", 0, "end after so many records")
	flags.DurationVar(&o.Duration, "duration", 0, "end after so long (10s if --records is not given either)")
	flags.DurationVar(&o.Warmup, "warmup", 0, "send, but do not measure, the records due in this time")
	flags.IntVar(&o.RecordBytes, "record-size", 1024, "bytes of each value")
	flags.Float64Var(&o.Random, "random", 1, "share of random bytes in a value, for codecs")
	flags.IntVar(&o.Clients, "clients", 1, "number of clients, each with its own connections")
	flags.IntVar(&o.BatchBytes, "batch-bytes", 0, "limit of a batch (default 1 MB)")
	flags.DurationVar(&o.Linger, "linger", 0, "how long a batch waits for more records")
	flags.StringVar(&o.Compression, "compression", "none", "none, gzip, snappy, lz4 or zstd")
	flags.StringVar(&o.Acks, "acks", "all", "all (idempotent), 1 or 0")
	flags.IntVar(&o.MaxBuffered, "max-buffered", 0, "records that may wait in each client (default 100000, at most 256 MiB)")
	return cmd
}

func newPerfConsumeCommand() *cobra.Command {
	var (
		target perfTarget
		o      perf.ConsumeOptions
	)
	cmd := &cobra.Command{
		Use:   "consume --topic NAME",
		Short: "Read records; latency is from the planned time in records of perf produce",
		Example: `  lockstep perf consume --topic load --duration 30s
  lockstep perf consume --topic load --from-earliest --records 1000000 --group readers --clients 4`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Topic == "" {
				return usageError{errors.New("--topic is required")}
			}
			var err error
			if o.Client, err = target.client(); err != nil {
				return usageError{err}
			}
			report, err := perf.Consume(cmd.Context(), o)
			if err != nil {
				return err
			}
			return target.print(cmd, report)
		},
	}
	target.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.Topic, "topic", "", "topic to read")
	flags.StringVar(&o.Group, "group", "", "read as a member of this consumer group")
	flags.BoolVar(&o.FromEarliest, "from-earliest", false, "begin at the log start instead of the end")
	flags.BoolVar(&o.ReadCommitted, "read-committed", false, "leave out records of open and aborted transactions")
	flags.Int64Var(&o.Records, "records", 0, "end after so many records")
	flags.DurationVar(&o.Duration, "duration", 0, "end after so long (10s if --records is not given either)")
	flags.DurationVar(&o.Idle, "idle", 0, "end when nothing has come for so long (default 5s)")
	flags.IntVar(&o.Clients, "clients", 1, "number of clients; more than one needs --group")
	flags.IntVar(&o.MaxBytes, "max-bytes", 0, "limit of a fetch (default 50 MB)")
	return cmd
}

func newPerfNullMirrorCommand() *cobra.Command {
	var (
		target perfTarget
		topics string
		dir    string
	)
	cmd := &cobra.Command{
		Use:   "null-mirror",
		Short: "Read a source as a mirror does, check, write to a scratch file, and nothing else: the measure for the mirror path",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pattern, err := regexp.Compile("^(?:" + topics + ")$")
			if err != nil {
				return usageError{fmt.Errorf("--topics: %w", err)}
			}
			props, err := target.properties()
			if err != nil {
				return usageError{err}
			}
			cluster, err := source.Open(props, source.Options{ClientID: "lockstep-perf"})
			if err != nil {
				return usageError{err}
			}
			defer cluster.Close()
			partitions, err := nullPartitions(cmd, cluster, pattern)
			if err != nil {
				return err
			}
			report, err := perf.NullMirror(cmd.Context(), perf.NullMirrorOptions{
				Transport: cluster.Transport(), Partitions: partitions, Dir: dir,
			})
			if err != nil {
				return err
			}
			return target.print(cmd, report)
		},
	}
	target.addFlags(cmd)
	cmd.Flags().StringVar(&topics, "topics", ".*", "`regex` of the topics to read; internal topics never are")
	cmd.Flags().StringVar(&dir, "dir", os.TempDir(), "directory for the scratch file")
	return cmd
}

// nullPartitions are the partitions of the topics that match, from their log start
// to their high watermark of now.
func nullPartitions(cmd *cobra.Command, cluster *source.Cluster, pattern *regexp.Regexp) ([]perf.NullPartition, error) {
	ctx := cmd.Context()
	m, err := cluster.Metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	var out []perf.NullPartition
	for _, name := range slices.Sorted(maps.Keys(m.Topics)) {
		t := m.Topics[name]
		if t.Internal || !pattern.MatchString(name) {
			continue
		}
		if t.Err != nil {
			return nil, fmt.Errorf("%s: %w", name, t.Err)
		}
		for _, p := range t.Partitions {
			leader, ok := m.Brokers[p.Leader]
			if !ok {
				return nil, fmt.Errorf("%s-%d has no leader", name, p.Index)
			}
			n := perf.NullPartition{
				Leader: leader, LeaderEpoch: p.LeaderEpoch,
				Key: sdk.PartitionKey{Topic: name, TopicID: t.ID, Partition: p.Index},
			}
			if n.Start, n.End, err = cluster.Offsets(ctx, leader, n.Key, p.LeaderEpoch); err != nil {
				return nil, err
			}
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no topic matches %s", pattern)
	}
	return out, nil
}
