package mirror

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func adminOf(t *testing.T, src *kfake.Cluster) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// alter sets a config of a source topic, or deletes it if the value is empty.
func alter(admin *kadm.Client, topic, key, value string) error {
	c := kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: kmsg.StringPtr(value)}
	if value == "" {
		c = kadm.AlterConfig{Op: kadm.DeleteConfig, Name: key}
	}
	resps, err := admin.AlterTopicConfigs(context.Background(), []kadm.AlterConfig{c}, topic)
	if err != nil {
		return err
	}
	return resps[0].Err
}

func commit(t *testing.T, admin *kadm.Client, group, topic string, partition int32, offset int64) {
	t.Helper()
	var o kadm.Offsets
	o.AddOffset(topic, partition, offset, -1)
	if err := admin.CommitAllOffsets(context.Background(), group, o); err != nil {
		t.Fatal(err)
	}
}
