package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// logWindow and logBurst: of one message, so many lines in so much time. What
	// clients bring about must not fill the disk of the log.
	logWindow = 10 * time.Second
	logBurst  = 100
	// logMessages bounds the memory; messages are constants, some hundred.
	logMessages = 4096
)

// limitedHandler lets a message pass logBurst times in logWindow. The next line
// of it after that says how many did not.
type limitedHandler struct {
	slog.Handler
	seen *logCounts // shared by all handlers made of one
}

type logCounts struct {
	mu       sync.Mutex
	messages map[string]*logCount
}

type logCount struct {
	since      time.Time
	lines      int
	suppressed int
}

func limitLog(h slog.Handler) slog.Handler {
	return limitedHandler{h, &logCounts{messages: map[string]*logCount{}}}
}

func (h limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	suppressed, pass := h.seen.pass(r.Message, r.Time)
	if !pass {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return h.Handler.Handle(ctx, r)
}

func (c *logCounts) pass(message string, now time.Time) (suppressed int, pass bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.messages[message]
	if m == nil {
		if len(c.messages) >= logMessages {
			clear(c.messages)
		}
		m = &logCount{since: now}
		c.messages[message] = m
	}
	if now.Sub(m.since) >= logWindow {
		m.since, m.lines = now, 0
	}
	if m.lines >= logBurst {
		m.suppressed++
		return 0, false
	}
	m.lines++
	suppressed, m.suppressed = m.suppressed, 0
	return suppressed, true
}

func (h limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limitedHandler{h.Handler.WithAttrs(attrs), h.seen}
}

func (h limitedHandler) WithGroup(name string) slog.Handler {
	return limitedHandler{h.Handler.WithGroup(name), h.seen}
}
