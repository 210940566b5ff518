package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := slog.New(limitLog(slog.NewTextHandler(&out, nil)))
		for range 3 * logBurst {
			l.With("part", "kafka").Info("connection closed")
		}
		l.Info("another message")
		if n := strings.Count(out.String(), "connection closed"); n != logBurst {
			t.Errorf("%d lines, want %d", n, logBurst)
		}
		if !strings.Contains(out.String(), "another message") {
			t.Error("one message keeps another from being logged")
		}
		time.Sleep(logWindow)
		out.Reset()
		l.Info("connection closed")
		if !strings.Contains(out.String(), "suppressed=200") {
			t.Errorf("%s: want the number of lines left out", &out)
		}
	})
}
