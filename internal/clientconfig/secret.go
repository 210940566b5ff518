package clientconfig

import (
	"fmt"
	"log/slog"
)

// Secret is a password or a key. It prints as a placeholder whatever verb or
// encoder is used, so that an error or a log line cannot give it away.
type Secret string

const hidden = "[hidden]"

// Reveal is the value itself, for the one place that sends or uses it.
func (s Secret) Reveal() string { return string(s) }

// Format implements fmt.Formatter, which comes before every other printing
// method, so that %q, %x and %#v are covered as well.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, hidden) }

func (s Secret) String() string               { return hidden }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }
