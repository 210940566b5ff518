package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// column is one column of a table, left-aligned (K4).
type column struct {
	title string
	width int
}

// printRow pads every cell but the last.
func printRow(w io.Writer, columns []column, cells []string) {
	var b strings.Builder
	for i, cell := range cells {
		if i == len(cells)-1 {
			b.WriteString(cell)
			break
		}
		fmt.Fprintf(&b, "%-*s ", columns[i].width, cell)
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

func printHead(w io.Writer, columns []column) {
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	printRow(w, columns, titles)
}

// tail shortens a name by its beginning: the ends of names tell them apart.
func tail(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return "..." + string(r[len(r)-width+3:])
	}
	return s
}

// headOf shortens a text by its end.
func headOf(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:width-3]) + "..."
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func offsetOrDash(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

var listColumns = []column{{"MIRROR", 30}, {"TOPICS", 10}, {"SOURCE-CLUSTER-ID", 26}, {"SOURCE-BOOTSTRAP-SERVER", 50}}

// listedMirror is one mirror of --list --json.
type listedMirror struct {
	Mirror          string `json:"mirror"`
	Topics          int32  `json:"topics"`
	SourceClusterID string `json:"sourceClusterId"`
	SourceBootstrap string `json:"sourceBootstrapServer"`
}

func (f *mirrorsFlags) runList(c *mirrorsClient) error {
	resp, err := c.request(new(wire.ListClusterMirrorsRequest))
	if err != nil {
		return err
	}
	mirrors := []listedMirror{}
	for _, m := range resp.(*wire.ListClusterMirrorsResponse).Mirrors {
		mirrors = append(mirrors, listedMirror{m.MirrorName, m.TopicCount, m.SourceClusterID, m.SourceBootstrap})
	}
	slices.SortFunc(mirrors, func(a, b listedMirror) int { return strings.Compare(a.Mirror, b.Mirror) })
	if f.json {
		return printJSON(c.out, mirrors)
	}
	if len(mirrors) == 0 {
		fmt.Fprintln(c.out, "No mirrors found")
		return nil
	}
	printHead(c.out, listColumns)
	for _, m := range mirrors {
		printRow(c.out, listColumns, []string{
			tail(m.Mirror, 30), strconv.Itoa(int(m.Topics)), tail(orDash(m.SourceClusterID), 26), tail(orDash(m.SourceBootstrap), 50),
		})
	}
	return nil
}

// describedPartition is one row of --describe, and its JSON.
type describedPartition struct {
	Mirror            string  `json:"mirror"`
	Topic             string  `json:"topic"`
	Partition         int32   `json:"partition"`
	SourceOffset      int64   `json:"sourceOffset"`
	DestinationOffset int64   `json:"destinationOffset"`
	Lag               int64   `json:"lag"`
	State             string  `json:"state"`
	RetryAttempt      int16   `json:"retryAttempt"`
	ErrorMessage      *string `json:"errorMessage"`
	// LagSeconds bounds the age of the oldest record that is not here; null is
	// unknown.
	LagSeconds *float64 `json:"lagSeconds"`
	// Source is unknown, stale, behind, current or idle; null while STOPPED.
	Source *string `json:"source"`
	// SourceHeardSeconds is how long ago the source last answered; null is never.
	SourceHeardSeconds *float64 `json:"sourceHeardSeconds"`

	progress *wire.MirrorProgress
}

// seconds is a duration of the wire, -1 for unknown.
func seconds(millis int64) *float64 {
	if millis < 0 {
		return nil
	}
	s := float64(millis) / 1000
	return &s
}

func secondsOrDash(s *float64) string {
	if s == nil {
		return "-"
	}
	return strconv.FormatFloat(*s, 'f', 1, 64)
}

var (
	describeColumns = []column{{"MIRROR", 30}, {"TOPIC", 40}, {"PARTITION", 10}, {"SOURCE-OFFSET", 15}, {"DESTINATION-OFFSET", 18}, {"LAG", 10}, {"STATE", 12}, {"LAG-SECONDS", 12}, {"SOURCE", 8}}
	failedColumns   = []column{{"MIRROR", 30}, {"TOPIC", 40}, {"PARTITION", 10}, {"RETRY", 7}, {"ERROR", 80}}
	syncColumns     = []column{{"MIRROR", 30}, {"SYNC", 10}, {"LAST-SUCCESS-SECONDS", 20}, {"ERROR", 80}}
)

// describedSync is one recurring task of --describe --syncs, and its JSON.
type describedSync struct {
	Mirror             string   `json:"mirror"`
	Sync               string   `json:"sync"`
	LastSuccessSeconds *float64 `json:"lastSuccessSeconds"` // null is never
	ErrorMessage       *string  `json:"errorMessage"`       // of the last round
}

// described asks for the partitions of the mirror, or of all, that --topics names,
// sorted, and how the mirrors' syncs do.
func (f *mirrorsFlags) described(c *mirrorsClient) ([]describedPartition, []describedSync, error) {
	wanted, err := regexp.Compile("^(?:" + strings.Join(patterns(f.topics), "|") + ")$")
	if err != nil {
		return nil, nil, usageError{fmt.Errorf("--topics: %w", err)}
	}
	req := new(wire.DescribeClusterMirrorsRequest)
	if f.mirror != "" {
		req.MirrorNames = []string{f.mirror}
	}
	resp, err := c.request(req)
	if err != nil {
		return nil, nil, err
	}
	rows, syncs := []describedPartition{}, []describedSync{}
	var errs []error
	for _, m := range resp.(*wire.DescribeClusterMirrorsResponse).Mirrors {
		if m.ErrorCode != 0 {
			errs = append(errs, fmt.Errorf("mirror %s: %w", m.MirrorName, codeError(m.ErrorCode, "")))
		}
		for _, s := range m.Syncs {
			syncs = append(syncs, describedSync{m.MirrorName, s.Task, seconds(s.AgeMillis), s.Error})
		}
		for _, t := range m.Topics {
			if f.topics != "" && !wanted.MatchString(t.TopicName) {
				continue
			}
			for _, p := range t.Partitions {
				rows = append(rows, describePartition(m.MirrorName, t.TopicName, p))
			}
		}
	}
	slices.SortFunc(rows, func(a, b describedPartition) int {
		return cmp.Or(strings.Compare(a.Mirror, b.Mirror), strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	slices.SortStableFunc(syncs, func(a, b describedSync) int { return strings.Compare(a.Mirror, b.Mirror) })
	return rows, syncs, errors.Join(errs...)
}

func describePartition(mirror, topic string, p wire.DescribedMirrorPartition) describedPartition {
	row := describedPartition{
		Mirror: mirror, Topic: topic, Partition: p.Partition, SourceOffset: p.SourceOffset, DestinationOffset: p.DestinationOffset,
		Lag: p.Lag, State: p.StateValue, RetryAttempt: p.RetryAttempt, ErrorMessage: p.ErrorMessage, progress: p.Progress,
	}
	if p.Progress != nil {
		row.LagSeconds, row.SourceHeardSeconds = seconds(p.Progress.LagMillis), seconds(p.Progress.HeardMillis)
		row.Source = &p.Progress.Contact
	}
	return row
}

func (f *mirrorsFlags) runDescribe(c *mirrorsClient) error {
	if f.watch == 0 {
		return f.describeOnce(c)
	}
	return f.runWatch(c)
}

func (f *mirrorsFlags) describeOnce(c *mirrorsClient) error {
	rows, syncs, err := f.described(c)
	if err != nil {
		return err
	}
	if f.failed {
		rows = slices.DeleteFunc(rows, func(p describedPartition) bool { return p.State != "FAILED" })
	}
	switch {
	case f.syncs && f.json:
		return printJSON(c.out, syncs)
	case f.syncs:
		printSyncs(c.out, syncs)
	case f.json:
		return printJSON(c.out, rows)
	case f.failed:
		printFailed(c, rows)
	default:
		printDescribed(c.out, rows)
	}
	return nil
}

func printSyncs(w io.Writer, syncs []describedSync) {
	if len(syncs) == 0 {
		fmt.Fprintln(w, "No syncs found")
		return
	}
	printHead(w, syncColumns)
	for _, s := range syncs {
		message := "-"
		if s.ErrorMessage != nil {
			message = strings.ReplaceAll(*s.ErrorMessage, "\n", " ")
		}
		printRow(w, syncColumns, []string{tail(s.Mirror, 30), s.Sync, secondsOrDash(s.LastSuccessSeconds), headOf(message, 80)})
	}
}

func printDescribed(w io.Writer, rows []describedPartition) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "No mirror partitions found")
		return
	}
	printHead(w, describeColumns)
	for _, p := range rows {
		printRow(w, describeColumns, []string{
			tail(p.Mirror, 30), tail(p.Topic, 40), strconv.Itoa(int(p.Partition)),
			offsetOrDash(p.SourceOffset), offsetOrDash(p.DestinationOffset), offsetOrDash(p.Lag), p.State,
			secondsOrDash(p.LagSeconds), orDash(deref(p.Source)),
		})
	}
}

func printFailed(c *mirrorsClient, rows []describedPartition) {
	if len(rows) == 0 {
		fmt.Fprintln(c.out, "No failed partitions found")
		return
	}
	most := maxAttempts(c)
	printHead(c.out, failedColumns)
	for _, p := range rows {
		retry, message := "NonRetryable", "-"
		if p.RetryAttempt >= 0 {
			retry = fmt.Sprintf("%d/%s", p.RetryAttempt, most)
		}
		if p.ErrorMessage != nil {
			message = strings.ReplaceAll(*p.ErrorMessage, "\n", " ")
		}
		printRow(c.out, failedColumns, []string{
			tail(p.Mirror, 30), tail(p.Topic, 40), strconv.Itoa(int(p.Partition)), retry, headOf(message, 80),
		})
	}
}

// maxAttempts is the broker's limit of retries, which the describe answer does
// not carry: the broker's config says it, or nobody.
func maxAttempts(c *mirrorsClient) string {
	const key = "mirror.failed.retry.max.attempts"
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := c.conn.Request(c.ctx, meta)
	if err != nil {
		return "-"
	}
	brokers := resp.(*kmsg.MetadataResponse).Brokers
	if len(brokers) == 0 {
		return "-"
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType = kmsg.ConfigResourceTypeBroker
	resource.ResourceName = strconv.Itoa(int(brokers[0].NodeID))
	resource.ConfigNames = []string{key}
	req.Resources = append(req.Resources, resource)
	if resp, err = c.conn.Request(c.ctx, req); err != nil {
		return "-"
	}
	for _, r := range resp.(*kmsg.DescribeConfigsResponse).Resources {
		for _, e := range r.Configs {
			if e.Name == key && e.Value != nil {
				return *e.Value
			}
		}
	}
	return "-"
}
