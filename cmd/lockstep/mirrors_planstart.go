package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// startPlan is what --start --plan says, and its JSON.
type startPlan struct {
	Partitions []plannedCut    `json:"partitions"`
	Topics     []plannedTopic  `json:"topics"`
	Groups     []plannedRewind `json:"groups"`
}

// plannedCut is what a start would do to one partition that exists here.
type plannedCut struct {
	Mirror    string `json:"mirror"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	State     string `json:"state"`
	LogStart  *int64 `json:"logStart"` // null is unknown, here and below
	LogEnd    *int64 `json:"logEnd"`
	CutTo     *int64 `json:"cutTo"`
	// CutRecords are in the log and would not be after the cut. OnlyHere are those of
	// them that the source does not have, as far as leader epochs tell: the others are
	// fetched again.
	CutRecords        *int64  `json:"cutRecords"`
	OnlyHere          *int64  `json:"onlyHere"`
	LastMirroredEpoch *int32  `json:"lastMirroredEpoch"`
	Basis             string  `json:"basis"`
	ErrorMessage      *string `json:"errorMessage"`
}

// plannedTopic is a topic without partitions here: new, or not to be started.
type plannedTopic struct {
	Topic        string  `json:"topic"`
	ErrorMessage *string `json:"errorMessage"` // null: it would be made
}

// plannedRewind is a consumer group with offsets above a cut.
type plannedRewind struct {
	Group      string `json:"group"`
	State      string `json:"state"`
	Partitions int    `json:"partitions"`
	Records    int64  `json:"records"` // by which it would be set back
}

// planStart says what --start would cut. It asks and changes nothing.
func (f *mirrorsFlags) planStart(c *mirrorsClient) error {
	resp, err := c.request(&wire.DescribeClusterMirrorsRequest{
		MirrorNames: []string{f.mirror},
		Plan:        &wire.StartPlanRequest{IncludePatterns: patterns(f.topics), ExcludePatterns: patterns(f.exclude)},
	})
	if err != nil {
		return err
	}
	answer := resp.(*wire.DescribeClusterMirrorsResponse).Plan
	if answer == nil {
		return errors.New("the broker is of an older version, which plans no start; nothing was changed")
	}
	plan := startPlanOf(f.mirror, answer)
	if plan.Groups, err = rewoundGroups(c, plan.Partitions); err != nil {
		return err
	}
	if f.json {
		return printJSON(c.out, plan)
	}
	plan.print(c.out)
	return nil
}

func startPlanOf(name string, answer *wire.StartPlan) startPlan {
	plan := startPlan{Partitions: []plannedCut{}, Topics: []plannedTopic{}, Groups: []plannedRewind{}}
	for _, t := range answer.Topics {
		switch {
		case t.ErrorCode != 0:
			text := codeError(t.ErrorCode, deref(t.ErrorMessage)).Error()
			plan.Topics = append(plan.Topics, plannedTopic{t.Name, &text})
		case len(t.Partitions) == 0:
			plan.Topics = append(plan.Topics, plannedTopic{t.Name, nil})
		}
		for _, p := range t.Partitions {
			plan.Partitions = append(plan.Partitions, cutOf(name, t.Name, p))
		}
	}
	return plan
}

func cutOf(name, topic string, p wire.PlannedPartition) plannedCut {
	cut := plannedCut{
		Mirror: name, Topic: topic, Partition: p.Partition, State: p.State, Basis: p.Basis, ErrorMessage: p.ErrorMessage,
		LogStart: known(p.LogStart), LogEnd: known(p.LogEnd), CutTo: known(p.CutTo),
	}
	if p.LastMirroredEpoch >= 0 {
		cut.LastMirroredEpoch = &p.LastMirroredEpoch
	}
	if p.CutTo >= 0 {
		cut.CutRecords = known(p.LogEnd - max(p.LogStart, p.CutTo))
	}
	if p.Shared >= 0 {
		cut.OnlyHere = known(p.LogEnd - max(p.LogStart, p.Shared))
	}
	return cut
}

// known is a number of the wire, negative for unknown.
func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func rewoundGroups(c *mirrorsClient, cuts []plannedCut) ([]plannedRewind, error) {
	to := map[partitionKey]int64{}
	for _, p := range cuts {
		if p.CutRecords != nil && *p.CutRecords > 0 {
			to[partitionKey{p.Topic, p.Partition}] = *p.CutTo
		}
	}
	groups := []plannedRewind{}
	if len(to) == 0 {
		return groups, nil
	}
	err := eachGroup(c, func(name, state string, offsets map[partitionKey]int64) {
		g := plannedRewind{Group: name, State: state}
		for key, at := range offsets {
			if end, cut := to[key]; cut && at > end {
				g.Partitions++
				g.Records += at - end
			}
		}
		if g.Partitions > 0 {
			groups = append(groups, g)
		}
	})
	return groups, err
}

var (
	cutColumns    = []column{{"MIRROR", 30}, {"TOPIC", 40}, {"PARTITION", 10}, {"STATE", 13}, {"LOG-END", 15}, {"CUT-TO", 15}, {"CUT-RECORDS", 12}, {"ONLY-HERE", 12}, {"BASIS", 13}}
	rewindColumns = []column{{"GROUP", 40}, {"STATE", 20}, {"PARTITIONS", 10}, {"SET-BACK", 10}}
)

// bases say in words what decides about a cut.
var bases = map[string]string{
	wire.BasisNeverThere:  "the source knows no last mirrored epoch (no mirror of this cluster there, or deleted): cut to nothing, and copied anew",
	wire.BasisUnsupported: "the source, an Apache Kafka, does not know last mirrored epochs: cut to nothing, and copied anew",
}

func orUnknown(n *int64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatInt(*n, 10)
}

func (p startPlan) print(w io.Writer) {
	if len(p.Partitions) == 0 && len(p.Topics) == 0 {
		fmt.Fprintln(w, "Nothing to start: the source has no such topic. Nothing was changed.")
		return
	}
	var cut, only int64
	unknown, cuts := 0, map[string]int{}
	if len(p.Partitions) > 0 {
		printHead(w, cutColumns)
	}
	for _, r := range p.Partitions {
		printRow(w, cutColumns, []string{
			tail(r.Mirror, 30), tail(r.Topic, 40), strconv.Itoa(int(r.Partition)), r.State,
			orUnknown(r.LogEnd), orUnknown(r.CutTo), orUnknown(r.CutRecords), orUnknown(r.OnlyHere), r.Basis,
		})
		if r.CutRecords == nil || r.OnlyHere == nil {
			unknown++
		}
		if r.CutRecords != nil {
			cut += *r.CutRecords
			cuts[r.Basis]++
		}
		if r.OnlyHere != nil {
			only += *r.OnlyHere
		}
	}
	if len(p.Partitions) > 0 {
		fmt.Fprintln(w)
	}
	p.printRest(w)
	fmt.Fprintf(w, "Cut with --start: %d record(s) in %d partition(s); %d of them are only here: the source does not have them.\n", cut, len(p.Partitions), only)
	for _, basis := range []string{wire.BasisNeverThere, wire.BasisUnsupported} {
		if n := cuts[basis]; n > 0 {
			fmt.Fprintf(w, "%d partition(s) %s: %s.\n", n, basis, bases[basis])
		}
	}
	if unknown > 0 {
		fmt.Fprintf(w, "Not known for %d partition(s).\n", unknown)
	}
	fmt.Fprintln(w)
	p.printGroups(w)
	fmt.Fprintln(w, "Nothing was changed.")
}

// printRest tells of topics that would be made, and of what would not begin.
func (p startPlan) printRest(w io.Writer) {
	made := 0
	for _, t := range p.Topics {
		if t.ErrorMessage == nil {
			made++
			continue
		}
		fmt.Fprintf(w, "%s would not be started: %s\n", t.Topic, *t.ErrorMessage)
	}
	for _, r := range p.Partitions {
		if r.ErrorMessage != nil {
			fmt.Fprintf(w, "%s-%d: %s\n", r.Topic, r.Partition, *r.ErrorMessage)
		}
	}
	if made > 0 {
		fmt.Fprintf(w, "Made anew, with nothing to cut: %d topic(s).\n", made)
	}
}

func (p startPlan) printGroups(w io.Writer) {
	if len(p.Groups) == 0 {
		fmt.Fprintln(w, "No consumer group has offsets above a cut.")
		return
	}
	printHead(w, rewindColumns)
	for _, g := range p.Groups {
		printRow(w, rewindColumns, []string{tail(g.Group, 40), orDash(g.State), strconv.Itoa(g.Partitions), strconv.FormatInt(g.Records, 10)})
	}
	fmt.Fprintln(w, "\nTheir offsets above a cut are set back to it, where a group has no members.")
}
