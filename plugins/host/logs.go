package host

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

// maxText bounds a line of a plugin that goes into a log or an error.
const maxText = 512

// oneLine makes text of a plugin fit to be printed: one line, bounded, no
// control characters, valid UTF-8.
func oneLine(s string) string {
	if len(s) > maxText {
		cut := maxText
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd")))
}

// bridge brings go-plugin's logger to ours. Lines of the plugin itself, which
// carry its name, keep their level; what go-plugin says of its own work is for
// debugging, because the supervisor reports every outcome.
type bridge struct {
	logger *slog.Logger
	plugin string
}

func newBridge(logger *slog.Logger, plugin string) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Trace, Output: io.Discard})
	l.RegisterSink(&bridge{logger: logger, plugin: plugin})
	return l
}

func (b *bridge) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if name == b.plugin {
		switch level {
		case hclog.Info:
			to = slog.LevelInfo
		case hclog.Warn:
			to = slog.LevelWarn
		case hclog.Error:
			to = slog.LevelError
		}
	}
	if !b.logger.Enabled(context.Background(), to) {
		return
	}
	attrs := make([]any, 0, len(args))
	for i := 0; i+1 < len(args); i += 2 {
		key, _ := args[i].(string)
		if key == "" || key == "timestamp" {
			continue
		}
		if s, ok := args[i+1].(string); ok {
			args[i+1] = oneLine(s)
		}
		attrs = append(attrs, oneLine(key), args[i+1])
	}
	b.logger.Log(context.Background(), to, oneLine(msg), attrs...)
}

// tail keeps the end of what a plugin wrote to standard error, for the message
// when it does not start.
type tail struct {
	mu   sync.Mutex
	last []byte // at most maxText
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	if n := len(t.last) - maxText; n > 0 {
		t.last = append(t.last[:0], t.last[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return oneLine(string(t.last))
}

// output logs what a plugin prints while it runs. Whoever prints means someone
// to read it, hence info; long lines are cut.
type output struct {
	logger *slog.Logger
	stream string
}

func (o *output) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if text := oneLine(string(line)); text != "" {
			o.logger.Info("plugin printed", "stream", o.stream, "text", text)
		}
	}
	return len(p), nil
}
