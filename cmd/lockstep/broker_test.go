package main

import (
	"math"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

func TestRequestMemory(t *testing.T) {
	for _, tc := range []struct {
		overrides []string
		want      int64
	}{
		{nil, 128 << 20},
		{[]string{"socket.request.max.bytes=300000000"}, 300_000_000},
		{[]string{"queued.max.request.bytes=1000"}, 1000}, // and refused by the server, which names both
		{[]string{"queued.max.request.bytes=-1"}, math.MaxInt64},
	} {
		cfg, err := config.Load("", tc.overrides)
		if err != nil {
			t.Fatal(err)
		}
		if got := requestMemory(cfg); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.overrides, got, tc.want)
		}
	}
}
