package plugintest

import (
	"context"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

func TestPolicyHold(t *testing.T) {
	o := Options{
		Path: Build(t, "../examples/policy-hold"), Args: []string{"-topics", "^orders"},
		Kinds: []sdk.Kind{sdk.KindTruncation},
	}
	Run(t, o)

	policy, err := Host(t, o).TruncationPolicy("tested", fallback{t})
	if err != nil {
		t.Fatal(err)
	}
	questions := truncationQuestions()
	for name, want := range map[string]sdk.TruncationAction{
		"failback": sdk.TruncateHold, "source loss": sdk.TruncateHold, "retention": sdk.TruncateHold,
		"nothing to cut": sdk.TruncateCut, "other topic": sdk.TruncateCut,
	} {
		d, err := policy.DecideTruncation(context.Background(), questions[name])
		if err != nil || d.Action != want {
			t.Errorf("%s: %+v, %v, want action %d", name, d, err, want)
		}
	}
	if d, _ := policy.DecideTruncation(context.Background(), questions["failback"]); !strings.Contains(d.Text, "2 records from offset 8") {
		t.Errorf("text is %q", d.Text)
	}
}

func TestTransportRelay(t *testing.T) {
	Run(t, Options{Path: Build(t, "../examples/transport-relay"), Kinds: []sdk.Kind{sdk.KindTransport}})
}
