package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// Configs of a running broker take effect without a restart, and survive one.
func TestLiveConfig(t *testing.T) {
	overrides := []string{
		"listeners=PLAINTEXT://127.0.0.1:0", "admin.listener=", "log.dirs=" + t.TempDir(), "log.dir.reserve.bytes=-1",
		"durability=replicated", "message.max.bytes=3000",
	}
	level := new(slog.LevelVar)
	start := func() (*broker, *kgo.Client) {
		cfg, err := config.Load("", overrides)
		if err != nil {
			t.Fatal(err)
		}
		b, err := startBroker(t.Context(), cfg, level, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(fmt.Sprintf("%s:%d", b.endpoints[0].Host, b.endpoints[0].Port)),
			kgo.DisableIdempotentWrite(), kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
		if err != nil {
			t.Fatal(err)
		}
		return b, cl
	}
	stop := func(b *broker, cl *kgo.Client) {
		cl.Close()
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := b.stop(ctx); err != nil {
			t.Error(err)
		}
	}
	b, cl := start()
	defer func() { stop(b, cl) }()
	alter := func(name, value string) {
		t.Helper()
		op := kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
		if value == "" {
			op.Op, op.Value = kadm.DeleteConfig, nil
		}
		res, err := kadm.NewClient(cl).AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{op})
		if err != nil || res[0].Err != nil {
			t.Fatal(name, err, res)
		}
	}
	produce := func(size int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return cl.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte(strings.Repeat("x", size))}).FirstErr()
	}
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := produce(4000); !errors.Is(err, kerr.MessageTooLarge) {
		t.Fatal("the file's limit does not hold:", err)
	}
	alter("message.max.bytes", "5000")
	if err := produce(4000); err != nil {
		t.Fatal("the new limit does not hold:", err)
	}
	alter("log.level", "error")
	if level.Level() != slog.LevelError {
		t.Fatal("log level", level.Level())
	}
	stop(b, cl)
	level.Set(slog.LevelInfo)
	b, cl = start()
	if level.Level() != slog.LevelError {
		t.Fatal("log level after a restart", level.Level())
	}
	if err := produce(4000); err != nil {
		t.Fatal("the new limit does not hold after a restart:", err)
	}
	alter("message.max.bytes", "")
	if err := produce(4000); !errors.Is(err, kerr.MessageTooLarge) {
		t.Fatal("the file's limit does not hold again:", err)
	}
	alter("max.connections", "1") // what is open stays
	nc, err := net.Dial("tcp", net.JoinHostPort(b.endpoints[0].Host, strconv.Itoa(int(b.endpoints[0].Port))))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Fatal("a connection beyond the new limit:", err)
	}
	alter("max.connections", "")
}
