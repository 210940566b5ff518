package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// mirrorsFlags are the flags of the mirror tool in both vocabularies: --add,
// --remove and --topic are those of the first proposals, --start, --stop and
// --topics those of the later ones.
type mirrorsFlags struct {
	bootstrap, commandConfig string

	create, start, add, stop, remove, pause, resume, recover, delete, list, describe bool

	mirror, mirrorConfig   string
	topics, topic, exclude string
	all                    bool
	json, failed, syncs    bool

	plan    bool
	wait    string
	timeout time.Duration
	watch   time.Duration
}

// newMirrorsCommand is the command line of cluster mirroring, also reached as
// kafka-mirror.sh, kafka-mirrors.sh and kafka-cluster-mirrors.sh.
//
// Exit codes are those of every subcommand: 2 for wrong usage, where Kafka's own
// tools say 1.
func newMirrorsCommand() *cobra.Command {
	f := new(mirrorsFlags)
	cmd := &cobra.Command{
		Use:   "mirrors --bootstrap-server HOST:PORT (--create|--start|--stop|--pause|--resume|--recover|--delete|--list|--describe) [flags]",
		Short: "Create, start, stop and describe mirrors of other clusters",
		Long: `Controls the mirrors of a cluster. The cluster named by --bootstrap-server is the
one that holds the mirror; the cluster it copies from is named in --mirror-config.

  --create    stores the connection to a source, after trying it; touches no topic
  --start     mirrors topics of the source (--add is the same); undo with --stop
  --stop      fails topics over: detached from the source and writable (--remove is
              the same); needs nothing of the source; undo with --start, which cuts
              what was written here since
  --pause     stops copying, topics stay read-only; undo with --resume
  --recover   tries FAILED partitions again
  --delete    forgets a mirror all of whose topics are STOPPED, and with it what a
              failback needs to copy less than everything; cannot be undone
  --list, --describe   change nothing

--topics takes names or regular expressions, separated by commas; the server
matches them, for --start against the topics of the source, else against those of
the mirror. Put them in quotes: the shell expands .* to file names. --all is every
topic, and without --mirror, where that makes sense, those of every mirror.

--plan with --stop says what would be lost, with --start what would be cut here, and
changes nothing. --wait returns when
it is done: STOPPED after --stop, MIRRORING after --start, and so on; --wait=lag=0
when no record is missing, as the source itself has said since the wait began. A
partition that fails for good ends the wait at once, --timeout in any case.

Exit code 0: done; 1: failed, also if only one topic failed; 2: wrong usage.`,
		Example: `  lockstep mirrors --bootstrap-server :9094 --create --mirror my-mirror --mirror-config source.properties
  lockstep mirrors --bootstrap-server :9094 --start --topics '.*' --mirror my-mirror
  lockstep mirrors --bootstrap-server :9094 --start --all --mirror my-mirror --plan
  lockstep mirrors --bootstrap-server :9094 --describe --mirror my-mirror --watch
  lockstep mirrors --bootstrap-server :9094 --stop --all --mirror my-mirror --plan
  lockstep mirrors --bootstrap-server :9094 --stop --all --mirror my-mirror --wait`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if _, err := parseGoal(args[0], ""); err == nil {
				return usageError{fmt.Errorf("unexpected argument %q; it belongs to --wait with a sign between: --wait=%s", args[0], args[0])}
			}
			return usageError{fmt.Errorf("unexpected arguments %q; was a pattern expanded by the shell? quote it: --topics '.*'", args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			action, err := f.action()
			if err != nil {
				return usageError{fmt.Errorf("%w\n\n%s", err, strings.TrimRight(cmd.UsageString(), "\n"))}
			}
			return f.run(cmd, action)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.bootstrap, "bootstrap-server", "", "destination cluster, `host:port[,host:port]`; an empty host is localhost (required)")
	flags.StringVar(&f.commandConfig, "command-config", "", "client properties `file` for the destination (TLS, SASL)")
	flags.BoolVar(&f.create, "create", false, "create a mirror; with --mirror, --mirror-config")
	flags.BoolVar(&f.start, "start", false, "mirror topics; with --mirror, --topics and perhaps --exclude")
	flags.BoolVar(&f.add, "add", false, "same as --start")
	flags.BoolVar(&f.stop, "stop", false, "fail topics over; with --mirror, --topics")
	flags.BoolVar(&f.remove, "remove", false, "same as --stop")
	flags.BoolVar(&f.pause, "pause", false, "stop copying topics; with --mirror, --topics")
	flags.BoolVar(&f.resume, "resume", false, "copy paused topics again; with --mirror, --topics")
	flags.BoolVar(&f.recover, "recover", false, "try FAILED partitions again; with --mirror, --topics")
	flags.BoolVar(&f.delete, "delete", false, "delete a mirror; with --mirror")
	flags.BoolVar(&f.list, "list", false, "list the mirrors")
	flags.BoolVar(&f.describe, "describe", false, "describe partitions; perhaps with --mirror")
	flags.StringVar(&f.mirror, "mirror", "", "`name` of the mirror")
	flags.StringVar(&f.mirrorConfig, "mirror-config", "", "properties `file` with the connection to the source and the filters")
	flags.StringVar(&f.topics, "topics", "", "topics, a comma-separated `list` of names or regular expressions")
	flags.StringVar(&f.topic, "topic", "", "same as --topics")
	flags.BoolVar(&f.all, "all", false, "every topic, in place of --topics")
	flags.StringVar(&f.exclude, "exclude", "", "topics not to start, a comma-separated `list` of regular expressions")
	flags.BoolVar(&f.json, "json", false, "print JSON; with --list, --describe")
	flags.BoolVar(&f.failed, "failed", false, "only FAILED partitions and why; with --describe")
	flags.BoolVar(&f.syncs, "syncs", false, "when configs, group offsets, ACLs and so on were last synchronised; with --describe")
	flags.BoolVar(&f.plan, "plan", false, "say what --stop would lose, or --start cut, and change nothing")
	flags.StringVar(&f.wait, "wait", "", "return when all partitions are there: a `STATE`, lag=RECORDS or lag=SECONDSs; alone: the state that the action leads to")
	flags.Lookup("wait").NoOptDefVal = waitDefault
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "longest wait; with --wait")
	flags.DurationVar(&f.watch, "watch", 0, "print again every `interval` (2s if it is not given) until interrupted; with --describe")
	flags.Lookup("watch").NoOptDefVal = "2s"
	return cmd
}

// mirrorAction is what the tool is asked to do.
type mirrorAction struct {
	name         string
	given        func(*mirrorsFlags) bool
	needsMirror  bool
	needsTopics  bool
	takesConfig  bool
	takesExclude bool
	takesJSON    bool
	every        bool   // --all without --mirror is every mirror
	leadsTo      string // what --wait waits for
	do           func(*mirrorsFlags, *mirrorsClient) error
	plan         func(*mirrorsFlags, *mirrorsClient) error // with --plan
}

// mirrorActions are the actions with the flags that belong to them.
var mirrorActions = []mirrorAction{
	{name: "create", given: func(f *mirrorsFlags) bool { return f.create }, needsMirror: true, takesConfig: true, do: (*mirrorsFlags).runCreate},
	{name: "start", given: func(f *mirrorsFlags) bool { return f.start || f.add }, needsMirror: true, needsTopics: true, takesExclude: true, leadsTo: "MIRRORING", do: (*mirrorsFlags).runStart, plan: (*mirrorsFlags).planStart},
	{name: "stop", given: func(f *mirrorsFlags) bool { return f.stop || f.remove }, needsMirror: true, needsTopics: true, every: true, leadsTo: "STOPPED", do: (*mirrorsFlags).runStop, plan: (*mirrorsFlags).planStop},
	{name: "pause", given: func(f *mirrorsFlags) bool { return f.pause }, needsMirror: true, needsTopics: true, every: true, leadsTo: "PAUSED", do: (*mirrorsFlags).runPause},
	{name: "resume", given: func(f *mirrorsFlags) bool { return f.resume }, needsMirror: true, needsTopics: true, every: true, leadsTo: "MIRRORING", do: (*mirrorsFlags).runResume},
	{name: "recover", given: func(f *mirrorsFlags) bool { return f.recover }, needsMirror: true, needsTopics: true, every: true, leadsTo: "MIRRORING", do: (*mirrorsFlags).runRecover},
	{name: "delete", given: func(f *mirrorsFlags) bool { return f.delete }, needsMirror: true, do: (*mirrorsFlags).runDelete},
	{name: "list", given: func(f *mirrorsFlags) bool { return f.list }, takesJSON: true, do: (*mirrorsFlags).runList},
	{name: "describe", given: func(f *mirrorsFlags) bool { return f.describe }, takesJSON: true, leadsTo: "MIRRORING", do: (*mirrorsFlags).runDescribe},
}

// action is the one action that is asked for, with all that it needs and nothing
// that does not belong to it (K1).
func (f *mirrorsFlags) action() (mirrorAction, error) {
	var asked []mirrorAction
	for _, a := range mirrorActions {
		if a.given(f) {
			asked = append(asked, a)
		}
	}
	if len(asked) != 1 {
		return mirrorAction{}, errors.New("exactly one of --create, --start (--add), --stop (--remove), --pause, --resume, --recover, --delete, --list, --describe is needed")
	}
	a := asked[0]
	if f.topics != "" && f.topic != "" {
		return a, errors.New("--topics and --topic are the same; give one of them")
	}
	if f.topics == "" {
		f.topics = f.topic
	}
	describe := a.name == "describe"
	if f.all && f.topics != "" {
		return a, errors.New("--all is every topic; give it or --topics")
	}
	for _, rule := range []struct {
		flag          string
		given         bool
		needed, taken bool
	}{
		{"--bootstrap-server", f.bootstrap != "", true, true},
		{"--mirror", f.mirror != "", a.needsMirror && !(f.all && a.every), a.needsMirror || describe},
		{"--mirror-config", f.mirrorConfig != "", a.takesConfig, a.takesConfig},
		{"--topics", f.topics != "", a.needsTopics && !f.all, a.needsTopics || describe},
		{"--all", f.all, false, a.needsTopics},
		{"--exclude", f.exclude != "", false, a.takesExclude},
		{"--json", f.json, false, a.takesJSON || a.plan != nil && f.plan},
		{"--failed", f.failed, false, describe},
		{"--syncs", f.syncs, false, describe && !f.failed},
		{"--plan", f.plan, false, a.plan != nil},
		{"--wait", f.wait != "", false, a.leadsTo != "" && !f.plan},
		{"--watch", f.watch != 0, false, describe && f.wait == ""},
	} {
		switch {
		case rule.needed && !rule.given:
			return a, fmt.Errorf("%s is needed with --%s", rule.flag, a.name)
		case rule.given && !rule.taken:
			return a, fmt.Errorf("%s does not belong to --%s", rule.flag, a.name)
		}
	}
	if f.watch < 0 || f.timeout <= 0 {
		return a, errors.New("--watch and --timeout must be positive")
	}
	if _, err := parseGoal(f.wait, a.leadsTo); err != nil {
		return a, err
	}
	if f.all {
		f.topics = ".*"
	}
	return a, nil
}

// patterns splits a comma-separated list. An expression cannot contain a comma
// (C2).
func patterns(list string) []string {
	var out []string
	for p := range strings.SplitSeq(list, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}
