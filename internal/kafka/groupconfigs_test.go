package kafka

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// newGroupConfigWorld is a server that has the broker's configs of groups, and a
// level of its log.
func newGroupConfigWorld(t *testing.T) (*configWorld, *slog.LevelVar) {
	level := new(slog.LevelVar)
	s := anotherServer(t, func(o *Options) {
		o.LogLevel = level
		for _, c := range [][2]string{
			{"group.consumer.session.timeout.ms", "46000"}, {"group.consumer.min.session.timeout.ms", "45000"}, {"group.consumer.max.session.timeout.ms", "60000"},
			{"group.consumer.heartbeat.interval.ms", "5000"}, {"group.consumer.min.heartbeat.interval.ms", "5000"}, {"group.consumer.max.heartbeat.interval.ms", "15000"},
			{"group.consumer.assignment.interval.ms", "1000"},
		} {
			o.BrokerConfigs = append(o.BrokerConfigs, metadata.BrokerConfig{
				ConfigDef: metadata.ConfigDef{Name: c[0], Type: metadata.TypeInt, Default: c[1]}, Value: c[1], Set: c[1] == "46000",
			})
		}
	})
	return &configWorld{t, dial(t, addrOf(s))}, level
}

func (w *configWorld) listed(kind int8) []string {
	w.t.Helper()
	req := kmsg.NewPtrListConfigResourcesRequest()
	req.SetVersion(1)
	req.ResourceTypes = []int8{kind}
	var names []string
	for _, r := range ask[*kmsg.ListConfigResourcesResponse](w.t, w.c, req).ConfigResources {
		names = append(names, r.Name)
	}
	return names
}

// A group's configs hide the broker's, are held to its bounds, are listed while
// there are any, and need no group.
func TestGroupConfigs(t *testing.T) {
	w, _ := newGroupConfigWorld(t)
	const group, session = kmsg.ConfigResourceTypeGroupConfig, metadata.GroupSessionTimeout
	name := uniqueName(t)
	t.Cleanup(func() { w.replace(group, name) })

	below := "group.consumer.session.timeout.ms=46000<STATIC_BROKER_CONFIG group.consumer.session.timeout.ms=45000<DEFAULT_CONFIG"
	if got := w.show(group, name, session); got != "46000<STATIC_BROKER_CONFIG "+below {
		t.Errorf("untouched: %s", got)
	}
	if code, text := w.alter(group, name, session+"=50000", metadata.GroupHeartbeatInterval+"=6000"); code != 0 {
		t.Fatalf("alter: %d %s", code, text)
	}
	if got := w.show(group, name, session); got != "50000<GROUP_CONFIG "+session+"=50000<GROUP_CONFIG "+below {
		t.Errorf("altered: %s", got)
	}
	if got := strings.Count(w.show(group, name, ""), "\n"); got != 2 {
		t.Errorf("%d lines of configs and not 3", got+1)
	}
	if !slices.Contains(w.listed(32), name) {
		t.Error("not listed")
	}

	for _, tc := range []struct {
		name, op string
		code     *kerr.Error
		says     string
	}{
		{name, session + "=60001", kerr.InvalidConfig, "above group.consumer.max.session.timeout.ms=60000"},
		{name, session + "=44999", kerr.InvalidConfig, "below group.consumer.min.session.timeout.ms=45000"},
		{name, session + "=soon", kerr.InvalidConfig, session},
		{name, "share.session.timeout.ms=45000", kerr.InvalidConfig, "share.session.timeout.ms"},
		{"", session + "=50000", kerr.InvalidRequest, "name"},
	} {
		if code, text := w.alter(group, tc.name, tc.op); code != tc.code.Code || !strings.Contains(text, tc.says) {
			t.Errorf("%q %s: %d %s", tc.name, tc.op, code, text)
		}
	}

	// The broker's default changes while it runs; what a group says stays.
	assignment := "group." + metadata.GroupAssignmentInterval
	t.Cleanup(func() { w.replace(kmsg.ConfigResourceTypeBroker, "") })
	if code, text := w.alter(kmsg.ConfigResourceTypeBroker, "", assignment+"=3000"); code != 0 {
		t.Fatalf("alter: %d %s", code, text)
	}
	want := "3000<DYNAMIC_DEFAULT_BROKER_CONFIG " + assignment + "=3000<DYNAMIC_DEFAULT_BROKER_CONFIG " + assignment + "=1000<DEFAULT_CONFIG"
	if got := w.show(group, name, metadata.GroupAssignmentInterval); got != want {
		t.Errorf("%s", got)
	}

	if code := w.replace(group, name, metadata.GroupAssignmentInterval+"=0"); code != 0 {
		t.Fatalf("replace: %d", code)
	}
	if got := w.show(group, name, session); !strings.HasPrefix(got, "46000<STATIC") {
		t.Errorf("replaced, and still %s", got)
	}
	if code := w.replace(group, name); code != 0 || slices.Contains(w.listed(32), name) {
		t.Errorf("code %d; listed: %v", code, w.listed(32))
	}
}

// The one logger there is can be told a level, by Kafka's names, and nothing else.
func TestBrokerLogger(t *testing.T) {
	w, level := newGroupConfigWorld(t)
	const logger = kmsg.ConfigResourceTypeBrokerLogger
	if got := w.show(logger, "1", ""); got != "INFO<DYNAMIC_BROKER_LOGGER_CONFIG" {
		t.Errorf("%s", got)
	}
	for _, tc := range []struct {
		set  string
		want slog.Level
	}{{"TRACE", slog.LevelDebug}, {"FATAL", slog.LevelError}, {"WARN", slog.LevelWarn}, {"DEBUG", slog.LevelDebug}, {"INFO", slog.LevelInfo}, {"ERROR", slog.LevelError}} {
		if code, text := w.alter(logger, "1", "root="+tc.set); code != 0 || level.Level() != tc.want {
			t.Errorf("%s: %d %s, level %s", tc.set, code, text, level.Level())
		}
		if got := w.show(logger, "1", "root"); got != tc.want.String()+"<DYNAMIC_BROKER_LOGGER_CONFIG" {
			t.Errorf("%s: %s", tc.set, got)
		}
	}
	for _, tc := range []struct {
		broker, op string
		code       *kerr.Error
	}{
		{"1", "root=LOUD", kerr.InvalidConfig}, {"1", "kafka.server=INFO", kerr.InvalidConfig}, {"1", "root", kerr.InvalidRequest},
		{"2", "root=INFO", kerr.InvalidRequest}, {"", "root=INFO", kerr.InvalidRequest},
	} {
		if code, text := w.alter(logger, tc.broker, tc.op); code != tc.code.Code || level.Level() != slog.LevelError {
			t.Errorf("broker %q %s: %d %s, level %s", tc.broker, tc.op, code, text, level.Level())
		}
	}
	if code := w.replace(logger, "1", "root=INFO"); code != kerr.InvalidRequest.Code {
		t.Errorf("replaced: %d", code)
	}
}
