package controller

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap/zapcore"
)

// zapBridge passes what etcd logs at warning and above on to slog, at one level
// lower for warnings: most are about etcd as a stand-alone server. A Fatal is
// logged, and then ends the process, as zap does: etcd says it when its disk
// failed under it, and a node without its metadata cannot go on.
type zapBridge struct {
	logger *slog.Logger
	fields []zapcore.Field
}

// etcdSmallTalk is said at every start of a new or a single member: about ports and
// tokens that an embedded one does not have, and about a storage version that is
// looked for before the first write. It goes to debug.
var etcdSmallTalk = []string{
	"Running http and grpc server on single port. This is not recommended for production.",
	"simple token is not cryptographically signed",
	"Failed to detect schema version",
	"failed to update storage version",
}

// Enabled implements zapcore.LevelEnabler.
func (z *zapBridge) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (z *zapBridge) With(fields []zapcore.Field) zapcore.Core {
	return &zapBridge{logger: z.logger, fields: slices.Concat(z.fields, fields)}
}

// Check implements zapcore.Core.
func (z *zapBridge) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if z.Enabled(e.Level) {
		return ce.AddCore(e, z)
	}
	return ce
}

// Write implements zapcore.Core.
func (z *zapBridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelError
	switch {
	case slices.Contains(etcdSmallTalk, e.Message):
		level = slog.LevelDebug
	case e.Level == zapcore.WarnLevel:
		level = slog.LevelInfo
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(z.fields, fields) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for _, k := range slices.Sorted(maps.Keys(enc.Fields)) {
		attrs = append(attrs, slog.Any(k, enc.Fields[k]))
	}
	z.logger.LogAttrs(context.Background(), level, e.Message, attrs...)
	return nil
}

// Sync implements zapcore.Core.
func (z *zapBridge) Sync() error { return nil }
