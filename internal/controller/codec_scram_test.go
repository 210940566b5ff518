package controller

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// TestScramIsSealed: neither key stands in the store in clear, and a credential of
// another cluster key is a user who cannot log in, not a server that cannot start.
func TestScramIsSealed(t *testing.T) {
	c := testCodec(t)
	cred := metadata.NewScramCredential("alice", metadata.ScramSHA256, 4096, []byte("salt"), []byte("salted password"))
	w, err := c.encode(putScram{cred})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(w.value, cred.StoredKey) || bytes.Contains(w.value, cred.ServerKey) {
		t.Errorf("in clear: %s", w.value)
	}
	var logged bytes.Buffer
	other, err := openSealer(filepath.Join(t.TempDir(), "cluster.key"), strings.NewReader(strings.Repeat("fedcba9876543210", 100)), slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ch, err := codec{other}.decode(w.key, w.value, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := ch.(putScram).Credential; got.User != "alice" || got.Iterations != 4096 || got.StoredKey != nil || got.ServerKey != nil {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(logged.String(), "alice") {
		t.Errorf("logged %q", logged.String())
	}
	// One user's credential put in another's place.
	if ch, err := c.decode(dirScram+"SCRAM-SHA-256/bob", w.value, 1); err != nil || ch.(putScram).Credential.StoredKey != nil {
		t.Errorf("%+v %v", ch, err)
	}
	if a, b := c.seal.derive("a"), c.seal.derive("b"); bytes.Equal(a, b) || !bytes.Equal(a, c.seal.derive("a")) || bytes.Equal(a, other.derive("a")) {
		t.Error("derived secrets are not one per purpose and key")
	}
}
