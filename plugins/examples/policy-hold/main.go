// Policy-hold is a truncation policy: logs of the topics that match a pattern
// are never cut. The mirror of such a partition stops, with the reason in its
// description, until the operator has looked and takes the policy away.
//
//	plugin.hold.path=/usr/lib/lockstep/policy-hold
//	plugin.hold.sha256=…
//	plugin.hold.args=-topics ^orders
//	plugin.truncation.policy=hold
//
// While this process is dead or late the broker cuts nothing and asks again.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/plugins/serve"
)

func main() {
	topics := flag.String("topics", "", "regular expression of the topics that are never cut (required)")
	fail := flag.Bool("fail", false, "fail the partition for good, instead of asking again")
	flag.Parse()
	pattern, err := regexp.Compile(*topics)
	if err != nil || *topics == "" {
		fmt.Fprintln(os.Stderr, "-topics must be a regular expression:", err)
		os.Exit(2)
	}
	serve.Run(serve.Plugin{Name: "policy-hold", Version: "1", Truncation: &hold{topics: pattern, fail: *fail}})
}

type hold struct {
	topics *regexp.Regexp
	fail   bool
}

func (*hold) Name() string { return "policy-hold" }

func (h *hold) DecideTruncation(_ context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	// The question is also asked when nothing would be lost.
	if q.Target >= q.LogEnd || !h.topics.MatchString(q.Key.Topic) {
		return sdk.TruncationDecision{Action: sdk.TruncateCut, Target: q.Target}, nil
	}
	d := sdk.TruncationDecision{
		Action: sdk.TruncateHold,
		Text:   fmt.Sprintf("%d records from offset %d on are kept (%s)", q.LogEnd-q.Target, q.Target, q.Reason),
	}
	if h.fail {
		d.Action = sdk.TruncateFail
	}
	serve.Logger().Warn("a log is not cut", "partition", q.Key.String(), "log_end", q.LogEnd, "target", q.Target)
	return d, nil
}
