package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// stopPlan is what --stop --plan says, and its JSON.
type stopPlan struct {
	Partitions []plannedPartition `json:"partitions"`
	Groups     []plannedGroup     `json:"groups"`
	// GroupsSyncedSeconds is how long ago the group offsets of each mirror were last
	// synchronised; a mirror that is not in it never did, or nobody could say.
	GroupsSyncedSeconds map[string]float64 `json:"groupsSyncedSeconds"`
	Total               plannedLoss        `json:"total"`
}

// plannedLoss sums the partitions up. What a source acknowledged after its last answer
// nobody here can know: LostRecords never covers it, and SinceRecords only guesses it.
type plannedLoss struct {
	LostRecords int64 `json:"lostRecords"`
	AtLeast     bool  `json:"atLeast"`           // some source does not answer now
	Unknown     int   `json:"unknownPartitions"` // whose source has never answered, and is in no sum
	// HeardSeconds are the least and the greatest time since a source last answered; null
	// is never.
	HeardSeconds []float64 `json:"sourceHeardSeconds"`
	// SinceRecords is null where no partition's is known.
	SinceRecords     *float64 `json:"sinceRecords"`
	RecordsPerSecond float64  `json:"sourceRecordsPerSecond"`
	OpenTransactions int32    `json:"openTransactions"`
}

// plannedPartition is what a failover would do to one partition. Everything that is
// in the log of its leader here is kept.
type plannedPartition struct {
	Mirror    string `json:"mirror"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	State     string `json:"state"`
	Source    string `json:"source"`
	// SourceHeardSeconds is how long ago the source last answered; null is never.
	SourceHeardSeconds *float64 `json:"sourceHeardSeconds"`
	// LostRecords is what the source had when it last answered and is not here; null
	// is unknown. AtLeast: it does not answer now, so there may be more.
	LostRecords *int64 `json:"lostRecords"`
	AtLeast     bool   `json:"atLeast"`
	// SourceEnd is where the source's log ended when it last answered; null is unknown.
	// LostRecords are those from our end up to it.
	SourceEnd *int64 `json:"sourceEnd"`
	// RecordsPerSecond is what the source took before it last answered, and SinceRecords
	// what it will have taken since if it went on like that: an estimate, too high where it
	// has died meanwhile. They are lost too. Null is unknown.
	RecordsPerSecond *float64 `json:"sourceRecordsPerSecond"`
	SinceRecords     *float64 `json:"sinceRecords"`
	// LostSeconds: what is lost was written in the last so many seconds; null is
	// unknown.
	LostSeconds      *float64 `json:"lostSeconds"`
	OpenTransactions int32    `json:"openTransactions"` // to be aborted

	end int64
}

// plannedGroup is a consumer group with offsets in the topics.
type plannedGroup struct {
	Group      string `json:"group"`
	State      string `json:"state"`
	Partitions int    `json:"partitions"`
	// Unread is how many records lie between its offsets and the ends of the logs here.
	Unread int64 `json:"unread"`
}

// planStop says what --stop would lose. It asks and changes nothing.
func (f *mirrorsFlags) planStop(c *mirrorsClient) error {
	rows, syncs, err := f.described(c)
	if err != nil {
		return err
	}
	plan := stopPlanOf(rows, syncs)
	if len(plan.Partitions) > 0 {
		if plan.Groups, err = unreadGroups(c, plan.Partitions); err != nil {
			return err
		}
	}
	if f.json {
		return printJSON(c.out, plan)
	}
	plan.print(c.out)
	return nil
}

// stopPlanOf judges partitions that are not stopped yet.
func stopPlanOf(rows []describedPartition, syncs []describedSync) stopPlan {
	plan := stopPlan{Partitions: []plannedPartition{}, Groups: []plannedGroup{}, GroupsSyncedSeconds: map[string]float64{}}
	mirrors := map[string]bool{}
	for _, r := range rows {
		if r.State == "STOPPED" {
			continue
		}
		mirrors[r.Mirror] = true
		p := plannedPartition{Mirror: r.Mirror, Topic: r.Topic, Partition: r.Partition, State: r.State, Source: "unknown", AtLeast: true, end: -1}
		if known := r.progress; known != nil {
			p.Source, p.SourceHeardSeconds, p.OpenTransactions, p.end = known.Contact, r.SourceHeardSeconds, known.OpenTransactions, known.LogEnd
			p.LostSeconds, p.AtLeast = r.LagSeconds, known.Contact == "unknown" || known.Contact == "stale"
			if known.SourceSeen >= 0 && known.LogEnd >= 0 {
				lost, end := max(0, known.SourceSeen-known.LogEnd), known.SourceSeen
				p.LostRecords, p.SourceEnd = &lost, &end
			}
			if known.MilliRate >= 0 && known.HeardMillis >= 0 {
				rate := float64(known.MilliRate) / 1000
				since := rate * float64(known.HeardMillis) / 1000
				p.RecordsPerSecond, p.SinceRecords = &rate, &since
			}
		}
		plan.Partitions = append(plan.Partitions, p)
		plan.Total.add(p)
	}
	for _, s := range syncs {
		if s.Sync == "groups" && s.LastSuccessSeconds != nil && mirrors[s.Mirror] {
			plan.GroupsSyncedSeconds[s.Mirror] = *s.LastSuccessSeconds
		}
	}
	return plan
}

func (t *plannedLoss) add(p plannedPartition) {
	t.OpenTransactions += p.OpenTransactions
	if p.LostRecords == nil {
		t.Unknown++
		return
	}
	t.LostRecords += *p.LostRecords
	t.AtLeast = t.AtLeast || p.AtLeast
	if h := p.SourceHeardSeconds; h != nil {
		if t.HeardSeconds == nil {
			t.HeardSeconds = []float64{*h, *h}
		}
		t.HeardSeconds[0], t.HeardSeconds[1] = min(t.HeardSeconds[0], *h), max(t.HeardSeconds[1], *h)
	}
	if p.SinceRecords != nil {
		if t.SinceRecords == nil {
			t.SinceRecords = new(float64)
		}
		*t.SinceRecords += *p.SinceRecords
		t.RecordsPerSecond += *p.RecordsPerSecond
	}
}

func unreadGroups(c *mirrorsClient, partitions []plannedPartition) ([]plannedGroup, error) {
	ends := map[partitionKey]int64{}
	for _, p := range partitions {
		ends[partitionKey{p.Topic, p.Partition}] = p.end
	}
	groups := []plannedGroup{}
	err := eachGroup(c, func(name, state string, offsets map[partitionKey]int64) {
		g := plannedGroup{Group: name, State: state}
		for key, at := range offsets {
			if end, ours := ends[key]; ours {
				g.Partitions++
				g.Unread += max(0, end-at)
			}
		}
		if g.Partitions > 0 {
			groups = append(groups, g)
		}
	})
	return groups, err
}

type partitionKey struct {
	topic string
	index int32
}

// eachGroup tells of the consumer groups of this cluster, by name, and their committed
// offsets.
func eachGroup(c *mirrorsClient, take func(name, state string, offsets map[partitionKey]int64)) error {
	cl, err := kgo.NewClient(append(c.config.KgoOpts(), kgo.ClientID("lockstep-mirrors"))...)
	if err != nil {
		return fmt.Errorf("consumer groups: %w", err)
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	listed, err := admin.ListGroups(c.ctx)
	if err != nil {
		return fmt.Errorf("consumer groups: %w", err)
	}
	fetched := admin.FetchManyOffsets(c.ctx, listed.Groups()...)
	for _, name := range slices.Sorted(maps.Keys(fetched)) {
		g := fetched[name]
		if g.Err != nil {
			return fmt.Errorf("consumer groups: group %s: %w", name, g.Err)
		}
		offsets := map[partitionKey]int64{}
		g.Fetched.Each(func(o kadm.OffsetResponse) {
			if o.At >= 0 {
				offsets[partitionKey{o.Topic, o.Partition}] = o.At
			}
		})
		take(name, listed[name].State, offsets)
	}
	return nil
}

var (
	planColumns  = []column{{"MIRROR", 30}, {"TOPIC", 40}, {"PARTITION", 10}, {"STATE", 13}, {"SOURCE", 8}, {"HEARD-SECONDS", 13}, {"LOST-RECORDS", 12}, {"SINCE-THEN", 10}, {"LOST-SECONDS", 12}, {"OPEN-TRANSACTIONS", 17}}
	groupColumns = []column{{"GROUP", 40}, {"STATE", 20}, {"PARTITIONS", 10}, {"UNREAD", 10}}
)

func (p plannedPartition) lost() string {
	switch {
	case p.LostRecords == nil:
		return "?"
	case p.AtLeast:
		return ">=" + strconv.FormatInt(*p.LostRecords, 10)
	}
	return strconv.FormatInt(*p.LostRecords, 10)
}

// about is an estimate of records, rounded up.
func about(records *float64) string {
	if records == nil {
		return "?"
	}
	return "~" + strconv.FormatFloat(math.Ceil(*records), 'f', 0, 64)
}

// print never says that nothing is lost: only the source knows what it has acknowledged
// since it last answered.
func (t plannedLoss) print(w io.Writer, partitions int) {
	word := ""
	if t.AtLeast || t.Unknown > 0 {
		word = "at least "
	}
	fmt.Fprintf(w, "Lost with --stop: %s%d record(s) that the source is known to have, in %d partition(s)", word, t.LostRecords, partitions)
	if t.Unknown > 0 {
		fmt.Fprintf(w, "; unknown for %d of them, whose source has not answered yet", t.Unknown)
	}
	fmt.Fprintln(w, ".")
	if t.HeardSeconds != nil {
		fmt.Fprintf(w, "It told so %.1f to %.1f s ago. What it has acknowledged since is lost too: ", t.HeardSeconds[0], t.HeardSeconds[1])
		if t.SinceRecords == nil {
			fmt.Fprintln(w, "nobody here knows how much.")
		} else {
			fmt.Fprintf(w, "%s record(s) if it went on taking %.0f a second; nobody here knows.\n", strings.Replace(about(t.SinceRecords), "~", "about ", 1), math.Ceil(t.RecordsPerSecond))
		}
	}
	if t.AtLeast {
		fmt.Fprintln(w, "The source does not answer now. Whatever is lost was written there in the last LOST-SECONDS.")
	}
	fmt.Fprintf(w, "Aborted: %d open transaction(s).\n\n", t.OpenTransactions)
}

func (p stopPlan) print(w io.Writer) {
	if len(p.Partitions) == 0 {
		fmt.Fprintln(w, "Nothing to stop: no partition that is not STOPPED. Nothing was changed.")
		return
	}
	printHead(w, planColumns)
	for _, r := range p.Partitions {
		lostSeconds := "?"
		if r.LostSeconds != nil {
			lostSeconds = "<=" + secondsOrDash(r.LostSeconds)
			if *r.LostSeconds == 0 {
				lostSeconds = "0"
			}
		}
		printRow(w, planColumns, []string{
			tail(r.Mirror, 30), tail(r.Topic, 40), strconv.Itoa(int(r.Partition)), r.State, r.Source,
			secondsOrDash(r.SourceHeardSeconds), r.lost(), about(r.SinceRecords), lostSeconds, strconv.Itoa(int(r.OpenTransactions)),
		})
	}
	fmt.Fprintln(w)
	p.Total.print(w, len(p.Partitions))
	p.printGroups(w)
	fmt.Fprintln(w, "Nothing was changed.")
}

func (p stopPlan) printGroups(w io.Writer) {
	if len(p.Groups) == 0 {
		fmt.Fprintln(w, "No consumer group has offsets in these topics.")
		return
	}
	printHead(w, groupColumns)
	for _, g := range p.Groups {
		printRow(w, groupColumns, []string{tail(g.Group, 40), orDash(g.State), strconv.Itoa(g.Partitions), strconv.FormatInt(g.Unread, 10)})
	}
	fmt.Fprintln(w)
	var ages []string
	for name, s := range p.GroupsSyncedSeconds {
		ages = append(ages, fmt.Sprintf("%.0f s ago by mirror %s", s, name))
	}
	slices.Sort(ages)
	if len(ages) == 0 {
		fmt.Fprintln(w, "Their offsets have not been synchronised since this broker began: consumers go on where they are.")
		return
	}
	fmt.Fprintf(w, "Their offsets were last synchronised %s: consumers may see again what they read since.\n", strings.Join(ages, ", "))
}
