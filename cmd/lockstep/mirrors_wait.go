package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// waitDefault stands for the state that the action leads to.
const waitDefault = "done"

// mirrorStates are the names that --wait takes.
var mirrorStates = []string{
	"PREPARING", "EPOCH_FENCING", "ULE_RECOVERY", "MIRRORING", "PAUSING", "PAUSED", "STOPPING", "STOPPED", "FAILED",
}

// waitGoal is what --wait waits for: a state of every partition, or MIRRORING with
// no more than so much lag. What is not asked for is -1.
type waitGoal struct {
	state   string
	records int64
	seconds float64
}

func (g waitGoal) String() string {
	switch {
	case g.records >= 0:
		return fmt.Sprintf("lag=%d", g.records)
	case g.seconds >= 0:
		return fmt.Sprintf("lag=%gs", g.seconds)
	}
	return g.state
}

// parseGoal reads the value of --wait; leadsTo is the state that the action leads to.
func parseGoal(text, leadsTo string) (waitGoal, error) {
	g := waitGoal{state: "MIRRORING", records: -1, seconds: -1}
	lag, isLag := strings.CutPrefix(text, "lag=")
	secs, isSeconds := strings.CutSuffix(lag, "s")
	var err error
	switch {
	case text == "" || text == waitDefault:
		g.state = leadsTo
	case isLag && isSeconds:
		if g.seconds, err = strconv.ParseFloat(secs, 64); err != nil || g.seconds < 0 {
			return g, fmt.Errorf("--wait=%s: lag=10s is ten seconds", text)
		}
	case isLag:
		if g.records, err = strconv.ParseInt(lag, 10, 64); err != nil || g.records < 0 {
			return g, fmt.Errorf("--wait=%s: lag=0 is no record, lag=10s ten seconds", text)
		}
	case slices.Contains(mirrorStates, strings.ToUpper(text)):
		g.state = strings.ToUpper(text)
	default:
		return g, fmt.Errorf("--wait=%s: neither a state (%s) nor lag=RECORDS nor lag=SECONDSs", text, strings.Join(mirrorStates, ", "))
	}
	return g, nil
}

// met tells whether a partition is there. elapsed is how long the wait has lasted: a
// lag counts only if the source has told it since, because before a failover one
// waits for what the producers wrote last.
func (g waitGoal) met(p describedPartition, elapsed time.Duration) bool {
	if p.State != g.state {
		return false
	}
	if g.records < 0 && g.seconds < 0 {
		return true
	}
	if p.progress != nil && (p.progress.HeardMillis < 0 || p.progress.HeardMillis >= elapsed.Milliseconds()) {
		return false
	}
	if g.records >= 0 {
		return p.Lag >= 0 && p.Lag <= g.records
	}
	return p.LagSeconds != nil && *p.LagSeconds <= g.seconds
}

// hopeless says why a partition will not get there by itself.
func (g waitGoal) hopeless(p describedPartition) (string, bool) {
	switch {
	case p.State == "FAILED" && p.RetryAttempt < 0 && g.state != "FAILED" && g.state != "STOPPED":
		return "FAILED and is not tried again: " + deref(p.ErrorMessage), true
	case p.State == "STOPPED" && g.state != "STOPPED":
		return "STOPPED", true
	}
	return "", false
}

// pending are the partitions that are not there yet, and what keeps one from ever
// getting there. Topics that were stopped before are no part of what is mirrored.
func (g waitGoal) pending(rows []describedPartition, elapsed time.Duration) (counted int, open []describedPartition, err error) {
	stopped := g.state != "STOPPED" && slices.ContainsFunc(rows, func(p describedPartition) bool { return p.State != "STOPPED" })
	for _, p := range rows {
		if stopped && p.State == "STOPPED" {
			continue
		}
		counted++
		if g.met(p, elapsed) {
			continue
		}
		if why, never := g.hopeless(p); never {
			return counted, open, fmt.Errorf("%s-%d of mirror %s is %s", p.Topic, p.Partition, p.Mirror, why)
		}
		open = append(open, p)
	}
	return counted, open, nil
}

const (
	// commandGrace is how long a state that ends a wait may be the one from before the
	// command: a topic that was started is STOPPED, or FAILED, for a moment more.
	commandGrace = 5 * time.Second

	waitPoll = 200 * time.Millisecond
	waitTell = 10 * time.Second // between two lines about what is waited for
)

// waitFor polls until every partition is where --wait wants it.
func (f *mirrorsFlags) waitFor(c *mirrorsClient, a mirrorAction) error {
	if f.wait == "" {
		return nil
	}
	goal, err := parseGoal(f.wait, a.leadsTo)
	if err != nil {
		return usageError{err}
	}
	begin := time.Now()
	told := begin
	for {
		elapsed := time.Since(begin) // before the question: what is heard since is newer than the wait
		rows, _, err := f.described(c)
		var open []describedPartition
		counted := 0
		if err == nil {
			counted, open, err = goal.pending(rows, elapsed)
			switch {
			case err != nil:
				if a.name == "describe" || elapsed > commandGrace {
					return err
				}
			case counted == 0 && a.name == "describe":
				return errors.New("no mirror partition found to wait for")
			case len(open) == 0:
				fmt.Fprintf(c.out, "%s: %d partition(s) after %.1f s\n", goal, counted, elapsed.Seconds())
				return nil
			default:
				err = fmt.Errorf("%d of %d partition(s) are not at %s: %s", len(open), counted, goal, firstOf(open))
			}
		} else if dialErr := c.redial(); dialErr != nil {
			err = dialErr
		}
		if elapsed > f.timeout {
			return fmt.Errorf("after %v: %w", f.timeout, err)
		}
		if time.Since(told) > waitTell {
			fmt.Fprintln(c.err, "Waiting:", err)
			told = time.Now()
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(waitPoll):
		}
	}
}

// firstOf names the first few of the partitions that are waited for.
func firstOf(open []describedPartition) string {
	var names []string
	for _, p := range open {
		if len(names) == 3 {
			names = append(names, "...")
			break
		}
		text := fmt.Sprintf("%s-%d %s", p.Topic, p.Partition, p.State)
		if p.State == "MIRRORING" {
			text += fmt.Sprintf(" (lag %s, source %s)", offsetOrDash(p.Lag), orDash(deref(p.Source)))
		}
		if p.State == "FAILED" && p.ErrorMessage != nil {
			text += " (" + headOf(strings.ReplaceAll(*p.ErrorMessage, "\n", " "), 80) + ")"
		}
		names = append(names, text)
	}
	return strings.Join(names, ", ")
}

// runWatch prints again and again until it is interrupted. A cluster that does not
// answer for a while is told and tried again.
func (f *mirrorsFlags) runWatch(c *mirrorsClient) error {
	for {
		clearScreen(c.out)
		fmt.Fprintf(c.out, "%s  every %v, Ctrl-C ends\n", time.Now().Format(time.DateTime), f.watch)
		if err := f.describeOnce(c); err != nil {
			if usage := new(usageError); errors.As(err, usage) {
				return err
			}
			fmt.Fprintln(c.out, err)
			if err := c.redial(); err != nil {
				fmt.Fprintln(c.out, err)
			}
		}
		fmt.Fprintln(c.out)
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(f.watch):
		}
	}
}

// clearScreen makes a watch stay in place on a terminal; a file gets one block after
// the other.
func clearScreen(w io.Writer) {
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			fmt.Fprint(w, "\033[H\033[2J")
		}
	}
}
