package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/lockstep-kafka/lockstep/segment"
)

// comparer is one run of dump-log --compare.
type comparer struct {
	json   bool
	common bool     // ranges that one side has before or behind the other are no difference
	pairs  []string // A=B: names of directories that belong together

	out io.Writer
}

// comparedPartition is the summary of one partition as --json prints it; the
// lines of its differences come before it. Field names stay.
type comparedPartition struct {
	Partition string `json:"partition"`
	Result    string `json:"result"` // equal, different, missing-in-a, missing-in-b
	*segment.Comparison
}

type comparedRange struct {
	Partition string `json:"partition"`
	segment.Difference
}

// pair is two directories of one partition; an empty one is missing.
type pair struct {
	name string
	a, b string
}

func (c *comparer) run(dirA, dirB string) error {
	logsA, err := segment.FindLogs(dirA)
	if err != nil {
		return err
	}
	logsB, err := segment.FindLogs(dirB)
	if err != nil {
		return err
	}
	if len(logsA) == 0 || len(logsB) == 0 {
		return fmt.Errorf("dump-log: %d partitions in %s, %d in %s", len(logsA), dirA, len(logsB), dirB)
	}
	pairs := []pair{{pairName(logsA[0], logsB[0]), logsA[0].Dir, logsB[0].Dir}}
	if logsA[0].Dir != dirA || logsB[0].Dir != dirB { // not two partitions
		if pairs, err = c.pair(logsA, logsB); err != nil {
			return err
		}
	}
	different := 0
	for _, p := range pairs {
		same, err := c.partition(p)
		if err != nil {
			return err
		}
		if !same {
			different++
		}
	}
	if different > 0 {
		return fmt.Errorf("%d of %d partitions are different", different, len(pairs))
	}
	return nil
}

// pair finds what belongs together: what --pair says, the same topic id and
// partition, or the same name.
func (c *comparer) pair(logsA, logsB []segment.FoundLog) ([]pair, error) {
	wanted := map[string]string{}
	for _, s := range c.pairs {
		a, b, ok := strings.Cut(s, "=")
		if !ok || !has(logsA, a) || !has(logsB, b) {
			return nil, usageError{fmt.Errorf("--pair %s: want A=B, names of directories that are there", s)}
		}
		wanted[a] = b
	}
	taken := map[string]bool{}
	for _, b := range wanted {
		taken[b] = true
	}
	var pairs []pair
	for _, a := range logsA {
		match := pair{name: pairName(a, a), a: a.Dir}
		for _, b := range logsB {
			byHand, ok := wanted[a.Name]
			if ok && byHand == b.Name || !ok && !taken[b.Name] && belong(a, b) {
				match, taken[b.Name] = pair{pairName(a, b), a.Dir, b.Dir}, true
				break
			}
		}
		pairs = append(pairs, match)
	}
	for _, b := range logsB {
		if !taken[b.Name] {
			pairs = append(pairs, pair{name: pairName(b, b), b: b.Dir})
		}
	}
	return pairs, nil
}

func has(logs []segment.FoundLog, name string) bool {
	for _, l := range logs {
		if l.Name == name {
			return true
		}
	}
	return false
}

func belong(a, b segment.FoundLog) bool {
	if a.ID != ([16]byte{}) && b.ID != ([16]byte{}) {
		return a.ID == b.ID && a.Partition == b.Partition
	}
	return a.Name == b.Name
}

// pairName prefers the name with the topic in it.
func pairName(a, b segment.FoundLog) string {
	if a.Topic == "" && b.Topic != "" {
		return b.Name
	}
	return a.Name
}

func (c *comparer) partition(p pair) (same bool, err error) {
	if p.a == "" || p.b == "" {
		result, dir := "missing-in-b", p.a
		if p.a == "" {
			result, dir = "missing-in-a", p.b
		}
		if c.json {
			return false, json.NewEncoder(c.out).Encode(comparedPartition{Partition: p.name, Result: result})
		}
		_, err := fmt.Fprintf(c.out, "%s: %s, %s\n", p.name, result, dir)
		return false, err
	}
	sum, err := segment.CompareDirs(p.a, p.b, func(d segment.Difference) error {
		if c.json {
			return json.NewEncoder(c.out).Encode(comparedRange{p.name, d})
		}
		return c.line(p.name, d)
	})
	if err != nil {
		return false, err
	}
	result := "equal"
	if same = sum.Same(c.common); !same {
		result = "different"
	}
	if c.json {
		return same, json.NewEncoder(c.out).Encode(comparedPartition{p.name, result, sum})
	}
	_, err = fmt.Fprintf(c.out, "%s: %s, %d batches equal (%d bytes); A has %s, B has %s%s\n",
		p.name, result, sum.Equal, sum.EqualBytes, side(sum.A), side(sum.B), compactedNote(sum))
	return same, err
}

func side(s segment.Side) string {
	if s.Start < 0 {
		return "nothing"
	}
	return fmt.Sprintf("offsets %d to %d in %d batches", s.Start, s.End, s.Batches)
}

func compactedNote(c *segment.Comparison) string {
	which := ""
	switch {
	case c.A.Compacted && c.B.Compacted:
		which = "both are"
	case c.A.Compacted:
		which = "A is"
	case c.B.Compacted:
		which = "B is"
	default:
		return ""
	}
	return "; " + which + " compacted: batches that a cleaner rewrote are different without being wrong"
}

func (c *comparer) line(name string, d segment.Difference) error {
	text := fmt.Sprintf("%s: %s offsets %d to %d", name, d.Kind, d.From, d.To)
	switch d.Kind {
	case segment.OnlyInA, segment.OnlyInB:
		text += fmt.Sprintf(" (%s), %d batches", map[string]string{
			segment.AtStart: "before the other begins", segment.AtEnd: "behind the other's end", segment.Inside: "a hole in the other",
		}[d.Where], d.BatchesA+d.BatchesB)
	case segment.Differing:
		text += fmt.Sprintf(", %d batches in A, %d in B: %s", d.BatchesA, d.BatchesB, d.Detail)
	default:
		text = fmt.Sprintf("%s: %s at offset %d: %s", name, d.Kind, d.From, d.Detail)
	}
	for _, p := range []*segment.Place{d.A, d.B} {
		if p != nil {
			text += fmt.Sprintf("; %s at %d", p.File, p.Position)
		}
	}
	_, err := fmt.Fprintln(c.out, text)
	return err
}
