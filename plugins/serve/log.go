package serve

import (
	"log/slog"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// stderr is the pipe to the broker; Serve puts another file in os.Stderr.
var stderr = os.Stderr

// Logger writes to the broker's log, with level and attributes, under the
// plugin's name.
func Logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{
		Level: slog.LevelDebug, // the broker filters
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			// The names that the other end of the pipe reads.
			switch a.Key {
			case slog.MessageKey:
				a.Key = "@message"
			case slog.LevelKey:
				return slog.String("@level", strings.ToLower(a.Value.String()))
			case slog.TimeKey:
				return slog.String("@timestamp", a.Value.Time().Format(hclog.TimeFormatJSON))
			}
			return a
		},
	}))
}

// quietLogger takes what go-plugin says about itself: only what is wrong.
func quietLogger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: stderr, JSONFormat: true})
}
