package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// mirrorsTimeout bounds one command. A create or a start waits for the source,
// whose own limit, request.timeout.ms, is 30 s unless set.
const mirrorsTimeout = 2 * time.Minute

// mirrorsClient is the connection of one command to the destination.
type mirrorsClient struct {
	ctx      context.Context
	config   *clientconfig.Config
	conn     *wire.Client
	out, err io.Writer
}

func (f *mirrorsFlags) run(cmd *cobra.Command, a mirrorAction) error {
	limit := mirrorsTimeout
	if f.wait != "" {
		limit += f.timeout
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	if f.watch > 0 {
		cancel()
		ctx, cancel = context.WithCancel(cmd.Context())
	}
	defer cancel()
	config, err := f.clientConfig()
	if err != nil {
		return usageError{err}
	}
	for _, w := range config.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", w)
	}
	conn, err := dialAny(ctx, config)
	if err != nil {
		return err
	}
	c := &mirrorsClient{ctx: ctx, config: config, conn: conn, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
	defer func() { c.conn.Close() }()
	if !f.all || f.mirror != "" || !a.every {
		return f.once(c, a)
	}
	names, err := c.mirrorNames()
	if err != nil {
		return err
	}
	if f.plan {
		return f.once(c, a) // one plan over all
	}
	// Every mirror gets its command before any of them is waited for.
	wait := f.wait
	f.wait = ""
	var errs []error
	for _, name := range names {
		f.mirror = name
		if err := a.do(f, c); err != nil {
			errs = append(errs, fmt.Errorf("mirror %s: %w", name, err))
		}
	}
	f.mirror, f.wait = "", wait
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return f.waitFor(c, a)
}

// once does one action and waits, if it was asked to.
func (f *mirrorsFlags) once(c *mirrorsClient, a mirrorAction) error {
	if f.plan {
		return a.plan(f, c)
	}
	if a.name != "describe" || f.wait == "" {
		if err := a.do(f, c); err != nil {
			return err
		}
	}
	return f.waitFor(c, a)
}

func (c *mirrorsClient) mirrorNames() ([]string, error) {
	resp, err := c.request(new(wire.ListClusterMirrorsRequest))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range resp.(*wire.ListClusterMirrorsResponse).Mirrors {
		names = append(names, m.MirrorName)
	}
	slices.Sort(names)
	return names, nil
}

// redial takes another connection: whoever watches a cluster outlives its brokers.
func (c *mirrorsClient) redial() error {
	conn, err := dialAny(c.ctx, c.config)
	if err != nil {
		return err
	}
	c.conn.Close()
	c.conn = conn
	return nil
}

// clientConfig reads --command-config, with --bootstrap-server in place of any
// address in it.
func (f *mirrorsFlags) clientConfig() (*clientconfig.Config, error) {
	props := make(map[string]string)
	if f.commandConfig != "" {
		var err error
		if props, err = clientconfig.LoadFile(f.commandConfig); err != nil {
			return nil, fmt.Errorf("--command-config: %w", err)
		}
	}
	props["bootstrap.servers"] = f.bootstrap
	config, err := clientconfig.Parse(props, clientconfig.AllowUnknown())
	var key *clientconfig.KeyError
	if errors.As(err, &key) && key.Key == "bootstrap.servers" {
		return nil, fmt.Errorf("--bootstrap-server: %w", key.Err)
	}
	return config, err
}

// dialAny connects to the first address that answers.
func dialAny(ctx context.Context, config *clientconfig.Config) (*wire.Client, error) {
	dialer := config.Dialer("lockstep-mirrors")
	dialer.RequestTimeout = mirrorsTimeout
	var errs []error
	for _, addr := range config.Bootstrap {
		conn, err := dialer.Dial(ctx, addr)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return nil, fmt.Errorf("destination cluster: %w", errs[0])
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return nil, fmt.Errorf("destination cluster: no address answers: %s", strings.Join(texts, "; "))
}

func (c *mirrorsClient) request(req kmsg.Request) (kmsg.Response, error) {
	resp, err := c.conn.Request(c.ctx, req)
	if errors.Is(err, wire.ErrUnsupported) {
		return nil, fmt.Errorf("%s does not serve mirrors: %w", c.conn.Addr(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.conn.Addr(), err)
	}
	if s, ok := resp.(interface{ Status() (int16, string) }); ok {
		if code, message := s.Status(); code != 0 {
			return nil, codeError(code, message)
		}
	}
	return resp, nil
}

// mirrorErrorNames are the error codes of KIP-1279, which clients of today do
// not know.
var mirrorErrorNames = map[int16]string{
	134: "READ_ONLY_TOPIC", 135: "INVALID_CLUSTER_MIRROR_NAME", 136: "CLUSTER_MIRROR_ALREADY_EXISTS",
	137: "UNKNOWN_CLUSTER_MIRROR", 138: "TOPIC_ALREADY_IN_CLUSTER_MIRROR", 139: "TOPIC_NOT_IN_CLUSTER_MIRROR",
	140: "MIRROR_TOPIC_ALREADY_PAUSED", 141: "MIRROR_TOPIC_NOT_PAUSED", 142: "MIRROR_TOPIC_BEING_STOPPED",
	143: "CLUSTER_MIRROR_NOT_EMPTY", 144: "CLUSTER_MIRROR_AUTHORIZATION_FAILED", 145: "INVALID_CLUSTER_MIRROR_STATES",
	146: "MIRROR_TOPIC_NOT_STOPPED",
}

// codeError is what the tool says for an error of the server: its text, then the
// name of the code.
func codeError(code int16, message string) error {
	name, ok := mirrorErrorNames[code]
	if !ok {
		name = kerr.TypedErrorForCode(code).Message
	}
	if message == "" {
		return fmt.Errorf("%s (%d)", name, code)
	}
	return fmt.Errorf("%s [%s %d]", message, name, code)
}

func (f *mirrorsFlags) runCreate(c *mirrorsClient) error {
	props, err := clientconfig.LoadFile(f.mirrorConfig)
	if err != nil {
		return usageError{fmt.Errorf("--mirror-config: %w", err)}
	}
	req := &wire.CreateClusterMirrorRequest{MirrorName: f.mirror}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		req.Config = append(req.Config, wire.MirrorConfig{Name: name, Value: kmsg.StringPtr(props[name])})
	}
	if _, err := c.request(req); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "Created mirror %s\n", f.mirror)
	return nil
}

func (f *mirrorsFlags) runStart(c *mirrorsClient) error {
	req := wire.NewStartMirrorTopicsRequest(f.mirror)
	req.IncludePatterns, req.ExcludePatterns = patterns(f.topics), patterns(f.exclude)
	return f.topicsCommand(c, req, func(done []string) string {
		if len(done) == 0 {
			return fmt.Sprintf("No matching topics found yet. Patterns saved to mirror %s for auto-discovery.", f.mirror)
		}
		return fmt.Sprintf("Started %d mirror topic(s) in mirror %s: %s", len(done), f.mirror, bracketed(done))
	})
}

func (f *mirrorsFlags) runStop(c *mirrorsClient) error {
	req := wire.NewRemoveTopicsFromMirrorRequest(f.mirror)
	req.Patterns = patterns(f.topics)
	return f.topicsCommand(c, req, func(done []string) string {
		return fmt.Sprintf("Stopped mirroring for topics %s in mirror %s", bracketed(done), f.mirror)
	})
}

func (f *mirrorsFlags) runPause(c *mirrorsClient) error {
	req := wire.NewPauseMirrorTopicsRequest(f.mirror)
	req.Patterns = patterns(f.topics)
	return f.topicsCommand(c, req, func(done []string) string {
		return fmt.Sprintf("Paused mirroring for %d topic(s) in mirror %s: %s", len(done), f.mirror, bracketed(done))
	})
}

func (f *mirrorsFlags) runResume(c *mirrorsClient) error {
	req := wire.NewResumeMirrorTopicsRequest(f.mirror)
	req.Patterns = patterns(f.topics)
	return f.topicsCommand(c, req, func(done []string) string {
		return fmt.Sprintf("Resumed mirroring for %d topic(s) in mirror %s: %s", len(done), f.mirror, bracketed(done))
	})
}

func (f *mirrorsFlags) runRecover(c *mirrorsClient) error {
	req := &wire.RecoverMirrorTopicsRequest{MirrorName: f.mirror, Patterns: patterns(f.topics)}
	return f.topicsCommand(c, req, func(done []string) string {
		return fmt.Sprintf("Recovered %d topic(s) in mirror %s: %s", len(done), f.mirror, bracketed(done))
	})
}

// topicsCommand sends a command over topics and looks at every topic of the
// answer (P16). What was done is printed also when some topics failed.
func (f *mirrorsFlags) topicsCommand(c *mirrorsClient, req kmsg.Request, line func(done []string) string) error {
	resp, err := c.request(req)
	if err != nil {
		return err
	}
	results := resp.(interface {
		Results() []wire.MirrorTopicResult
	}).Results()
	var done []string
	failed := 0
	for _, t := range results {
		if t.ErrorCode == 0 {
			done = append(done, t.Name)
			continue
		}
		failed++
		message := ""
		if t.ErrorMessage != nil {
			message = *t.ErrorMessage
		}
		fmt.Fprintf(c.err, "%s: %v\n", t.Name, codeError(t.ErrorCode, message))
	}
	slices.Sort(done)
	if failed == 0 || len(done) > 0 {
		fmt.Fprintln(c.out, line(done))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d topic(s) failed", failed, len(results))
	}
	return nil
}

func bracketed(names []string) string { return "[" + strings.Join(names, ", ") + "]" }

func (f *mirrorsFlags) runDelete(c *mirrorsClient) error {
	if _, err := c.request(wire.NewDeleteClusterMirrorRequest(f.mirror)); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "Deleted mirror %s\n", f.mirror)
	fmt.Fprintln(c.err, "Its last mirrored epochs are gone: mirroring these topics back would copy them anew from offset 0.")
	return nil
}
