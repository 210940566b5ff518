package controller

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// testLog shows warnings in the test's output.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(string(p[:len(p)-1]))
	return len(p), nil
}

func testOptions(t *testing.T, dir string) Options {
	return Options{
		Dir: dir + "/metadata", NodeID: 1,
		Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	}
}

func open(t *testing.T, o Options) *Controller {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func register(t *testing.T, c *Controller, incarnation byte) int64 {
	t.Helper()
	epoch, err := c.RegisterBroker(t.Context(), RegisterBroker{ID: 1, Incarnation: [16]byte{incarnation},
		Endpoints: []metadata.Endpoint{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}}})
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	c := open(t, testOptions(t, dir))
	t.Logf("opened in %v", time.Since(start))
	register(t, c, 1)
	start = time.Now()
	rs := c.CreateTopics(t.Context(), []CreateTopic{{Name: "orders", Partitions: 3}}, false)
	t.Logf("%+v in %v", rs, time.Since(start))
	start = time.Now()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("closed in %v", time.Since(start))
	start = time.Now()
	c = open(t, testOptions(t, dir))
	t.Logf("opened again in %v", time.Since(start))
	t.Logf("%+v", c.Image().Topic("orders"))
	defer c.Close()
}
