package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/verify"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

func newDemoCommand() *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show source, mirror, lag, failover, failback and equal logs in under a minute, on this machine alone",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := os.MkdirTemp("", "lockstep-demo-")
			if err != nil {
				return err
			}
			d := &demo{out: cmd.OutOrStdout(), dir: dir, started: time.Now()}
			err = d.run(cmd.Context())
			d.close()
			if keep {
				fmt.Fprintf(d.out, "Data and logs are kept in %s\n", dir)
				return err
			}
			return errors.Join(err, os.RemoveAll(dir))
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "keep the data directories and server logs")
	return c
}

const (
	demoTopic      = "orders"
	demoPartitions = 3
	demoMirror     = "my-mirror"
	demoPatience   = 20 * time.Second // for any one step; each takes a second or two
)

// demo is one run: two clusters, each a server process of its own, and a
// producer in this process. It stands for the story an operator lives through,
// and uses nothing but what an operator has: the servers, the mirror commands,
// an ordinary client.
type demo struct {
	out     io.Writer
	dir     string
	started time.Time
	a, b    *demoNode
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) close() {
	for _, n := range []*demoNode{d.a, d.b} {
		if n != nil {
			n.kill()
		}
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	d.say("Starting cluster A (the primary) and cluster B (the other site).")
	if d.a, err = newDemoNode(d.dir, "A"); err != nil {
		return err
	}
	if d.b, err = newDemoNode(d.dir, "B"); err != nil {
		return err
	}
	for _, n := range []*demoNode{d.a, d.b} {
		if err := n.start(ctx); err != nil {
			return err
		}
		d.say("Cluster %s serves on %s.", n.name, n.addr)
	}
	for _, step := range []func(context.Context) error{d.mirror, d.disaster, d.failover, d.failback, d.proof} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// mirror starts a producer on A and a mirror on B.
func (d *demo) mirror(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(d.a.addr))
	if err != nil {
		return err
	}
	_, err = kadm.NewClient(client).CreateTopic(ctx, demoPartitions, 1, nil, demoTopic)
	client.Close()
	if err != nil {
		return fmt.Errorf("create topic %s on A: %w", demoTopic, err)
	}
	d.say("A producer writes to topic %s on A.", demoTopic)
	if err := d.command(ctx, d.b, "--create", "--mirror", demoMirror, "--mirror-config", d.properties(d.a)); err != nil {
		return err
	}
	return d.command(ctx, d.b, "--start", "--topics", ".*", "--mirror", demoMirror)
}

// disaster kills A while it is written to, and says what B could not get.
func (d *demo) disaster(ctx context.Context) error {
	w, err := startDemoWriter(d.a.addr, 4000)
	if err != nil {
		return err
	}
	defer w.stop()
	for range 4 {
		if err := sleep(ctx, 700*time.Millisecond); err != nil {
			return err
		}
		parts, err := d.describe(ctx, d.b)
		if err != nil {
			return err
		}
		var lag int64
		for _, p := range parts {
			lag += max(p.Lag, 0)
		}
		d.say("  written to A: %6d acknowledged   lag of B: %4d records   %s", w.acked.Load(), lag, demoStates(parts))
	}
	// The line breaks a moment before the site does: what A acknowledges now, B
	// never gets. A stopped process is a line that carries nothing.
	if err := d.b.pause(); err != nil {
		return err
	}
	received := w.acked.Load()
	for deadline := time.Now().Add(demoPatience); w.acked.Load() < received+1000; {
		if time.Now().After(deadline) {
			return fmt.Errorf("A acknowledged nothing more: %w", w.err())
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	d.say("The line between the sites breaks; a moment later A is killed with SIGKILL while it is being written to.")
	d.a.kill()
	w.stop()
	if err := d.b.resume(); err != nil {
		return err
	}
	d.say("A is gone. It had acknowledged %d records, about %d of them after the line broke.", w.acked.Load(), w.acked.Load()-received)
	return nil
}

// failover makes B writable and writes to it.
func (d *demo) failover(ctx context.Context) error {
	began := time.Now()
	if err := d.command(ctx, d.b, "--stop", "--topics", ".*", "--mirror", demoMirror); err != nil {
		return err
	}
	if err := d.until(ctx, d.b, "every partition is STOPPED", func(p demoPartition) bool { return p.State == "STOPPED" }); err != nil {
		return err
	}
	d.say("B is writable %d ms after the command.", time.Since(began).Milliseconds())
	w, err := startDemoWriter(d.b.addr, 4000)
	if err != nil {
		return err
	}
	err = sleep(ctx, time.Second)
	w.stop()
	if err != nil {
		return err
	}
	if w.acked.Load() == 0 {
		return fmt.Errorf("B did not accept a single write: %w", w.err())
	}
	d.say("The producer moved to B and wrote %d records there.", w.acked.Load())
	return nil
}

// failback brings A back as the mirror of B.
func (d *demo) failback(ctx context.Context) error {
	d.say("A comes back, with records that B never got.")
	if err := d.a.start(ctx); err != nil {
		return err
	}
	before, err := endOffsets(ctx, d.a.addr)
	if err != nil {
		return err
	}
	lines, err := endOffsets(ctx, d.b.addr)
	if err != nil {
		return err
	}
	d.say("Log ends by partition before the failback: A %v, B %v.", before, lines)
	if err := d.command(ctx, d.a, "--create", "--mirror", demoMirror, "--mirror-config", d.properties(d.b)); err != nil {
		return err
	}
	if err := d.command(ctx, d.a, "--start", "--topics", ".*", "--mirror", demoMirror); err != nil {
		return err
	}
	if err := d.until(ctx, d.a, "A mirrors B, lag 0", func(p demoPartition) bool { return p.State == "MIRRORING" && p.Lag == 0 }); err != nil {
		return err
	}
	d.say("A asked B for the last mirrored epochs, cut what B never had, and fetched the rest:")
	cuts, err := d.a.cuts()
	if err != nil {
		return err
	}
	for _, c := range cuts {
		d.say("  %s-%d was cut at offset %d: %d records that B never got are gone", c.Topic, c.Partition, c.Offset, c.Cut)
	}
	if len(cuts) == 0 {
		d.say("  nothing had to be cut: B had received everything")
	}
	return nil
}

// proof compares both logs, byte for byte.
func (d *demo) proof(ctx context.Context) error {
	report, err := verify.Run(ctx, verify.Options{
		Source: verify.Cluster{Name: "source", Bootstrap: []string{d.b.addr}, Dialer: &wire.Dialer{ClientID: "lockstep-demo"}},
		Mirror: verify.Cluster{Name: "mirror", Bootstrap: []string{d.a.addr}, Dialer: &wire.Dialer{ClientID: "lockstep-demo"}},
	})
	if err != nil {
		return err
	}
	d.say("Comparing every batch of A and B:")
	if err := report.Print(d.out); err != nil {
		return err
	}
	if !report.OK() || !report.Complete() {
		return errors.New("the logs of A and B are not equal")
	}
	d.say("Both logs are equal, byte for byte, offset for offset, epoch for epoch.")
	return nil
}

// properties writes the source configuration of a mirror, as the seeds do it.
func (d *demo) properties(source *demoNode) string {
	path := filepath.Join(d.dir, "source-"+source.name+".properties")
	_, port, _ := strings.Cut(source.addr, ":")
	if err := os.WriteFile(path, []byte("bootstrap.servers=localhost:"+port+"\n"), 0o600); err != nil {
		d.say("%v", err) // the command that reads it fails with the reason
	}
	return path
}

// command runs one mirror command against a node and shows it.
func (d *demo) command(ctx context.Context, n *demoNode, args ...string) error {
	args = append([]string{"mirrors", "--bootstrap-server", n.addr}, args...)
	d.say("$ lockstep %s", strings.Join(quoted(args), " "))
	out, err := lockstep(ctx, args...)
	for line := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
		if line != "" {
			d.say("  %s", line)
		}
	}
	return err
}

func quoted(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; strings.ContainsAny(a, "*") {
			out[i] = "'" + a + "'"
		}
	}
	return out
}

type demoPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Lag       int64  `json:"lag"`
	State     string `json:"state"`
	Error     string `json:"errorMessage"`
}

func (d *demo) describe(ctx context.Context, n *demoNode) ([]demoPartition, error) {
	out, err := lockstep(ctx, "mirrors", "--bootstrap-server", n.addr, "--describe", "--mirror", demoMirror, "--json")
	if err != nil {
		return nil, err
	}
	var parts []demoPartition
	if err := json.Unmarshal([]byte(out), &parts); err != nil {
		return nil, fmt.Errorf("describe: %w", err)
	}
	return parts, nil
}

// until waits for a condition on every partition of the mirror on n.
func (d *demo) until(ctx context.Context, n *demoNode, what string, ok func(demoPartition) bool) error {
	deadline := time.Now().Add(demoPatience)
	for {
		parts, err := d.describe(ctx, n)
		if err != nil {
			return err
		}
		met := 0
		for _, p := range parts {
			if ok(p) {
				met++
			}
		}
		if met == demoPartitions {
			d.say("  %s", what)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s until %s: %+v", demoPatience, what, parts)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func demoStates(parts []demoPartition) string {
	count := map[string]int{}
	for _, p := range parts {
		count[p.State]++
	}
	var out []string
	for _, s := range []string{"PREPARING", "EPOCH_FENCING", "MIRRORING", "FAILED", "UNKNOWN"} {
		if count[s] > 0 {
			out = append(out, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	return strings.Join(out, ", ")
}

func endOffsets(ctx context.Context, addr string) ([]int64, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, demoTopic)
	if err != nil {
		return nil, err
	}
	out := make([]int64, demoPartitions)
	for i := range out {
		o, ok := ends.Lookup(demoTopic, int32(i))
		if !ok || o.Err != nil {
			return nil, fmt.Errorf("end offset of %s-%d on %s: %w", demoTopic, i, addr, o.Err)
		}
		out[i] = o.Offset
	}
	return out, nil
}

// demoWriter is an ordinary idempotent producer with acks=all at a fixed rate.
type demoWriter struct {
	acked   atomic.Int64
	lastErr atomic.Pointer[error]
	quit    context.CancelFunc
	done    chan struct{}
}

func startDemoWriter(addr string, perSecond int) (*demoWriter, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(demoTopic),
		kgo.ProducerLinger(2*time.Millisecond), kgo.RecordRetries(3), kgo.RetryTimeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &demoWriter{quit: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer client.Close()
		const tick = 10 * time.Millisecond
		t := time.NewTicker(tick)
		defer t.Stop()
		for n := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			for range perSecond / int(time.Second/tick) {
				n++
				client.TryProduce(ctx, &kgo.Record{Value: fmt.Appendf(nil, "order %d of %s", n, addr)}, func(_ *kgo.Record, err error) {
					if err == nil {
						w.acked.Add(1)
					} else if ctx.Err() == nil {
						w.lastErr.Store(&err)
					}
				})
			}
		}
	}()
	return w, nil
}

func (w *demoWriter) stop() {
	w.quit()
	<-w.done
}

func (w *demoWriter) err() error {
	if e := w.lastErr.Load(); e != nil {
		return *e
	}
	return errors.New("no error was reported")
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
