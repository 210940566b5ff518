package controller

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// sealedPrefix starts a sealed secret: sealed:1:<key fingerprint>:<base64>.
const sealedPrefix = "sealed:1:"

const sealKeyBytes = 32 // AES-256

// sealer keeps secrets out of the store: etcd's files, snapshots and backups
// hold them only under AES-GCM. The key is derived from cluster.secret, or stands
// in a file beside them where there is none. The mirror and the config name are
// authenticated with each secret, so that one cannot be moved to where another is
// expected.
type sealer struct {
	sealKey
	// older opens what was sealed before the cluster had a secret; nil: nothing.
	older *sealKey
	// stale is set when something was opened with the older key.
	stale  atomic.Bool
	file   string // what an operator is told to look after
	rand   io.Reader
	logger *slog.Logger
}

// sealKey is one key that seals.
type sealKey struct {
	aead        cipher.AEAD
	fingerprint string
	secret      []byte // what secrets for other purposes are derived from
}

func newSealKey(key []byte) (sealKey, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealKey{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return sealKey{}, err
	}
	sum := sha256.Sum256(key)
	return sealKey{aead, hex.EncodeToString(sum[:4]), key}, nil
}

// openSecret makes a sealer of the cluster's secret. A key file that a single node
// left behind still opens what it sealed.
func openSecret(secret, file string, random io.Reader, logger *slog.Logger) (*sealer, error) {
	key, err := hkdf.Key(sha256.New, []byte(secret), nil, "lockstep cluster.secret", sealKeyBytes)
	if err != nil {
		return nil, fmt.Errorf("cluster.secret: %w", err)
	}
	s := &sealer{file: "cluster.secret", rand: random, logger: logger}
	if s.sealKey, err = newSealKey(key); err != nil {
		return nil, fmt.Errorf("cluster.secret: %w", err)
	}
	if file == "" {
		return s, nil
	}
	if key, err = readKey(file); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	} else if err != nil {
		return nil, err
	}
	older, err := newSealKey(key)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", file, err)
	}
	s.older = &older
	return s, nil
}

// openSealer reads the key file, or makes one.
func openSealer(file string, random io.Reader, logger *slog.Logger) (*sealer, error) {
	key, err := readKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(file, random)
	}
	if err != nil {
		return nil, err
	}
	s := &sealer{file: file, rand: random, logger: logger}
	if s.sealKey, err = newSealKey(key); err != nil {
		return nil, fmt.Errorf("key file %s: %w", file, err)
	}
	return s, nil
}

func readKey(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s: mode %v lets others read it; make it 0600", file, info.Mode().Perm())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != sealKeyBytes {
		return nil, fmt.Errorf("key file %s: does not hold %d bytes in hex", file, sealKeyBytes)
	}
	return key, nil
}

// makeKey writes the file under another name and links it into place, so that a
// crash leaves no half key, and of two starters both read the same one.
func makeKey(file string, random io.Reader) ([]byte, error) {
	key := make([]byte, sealKeyBytes)
	if _, err := io.ReadFull(random, key); err != nil {
		return nil, fmt.Errorf("key file: draw key: %w", err)
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".cluster.key-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(hex.EncodeToString(key) + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := os.Link(tmp.Name(), file); errors.Is(err, fs.ErrExist) {
		return readKey(file)
	} else if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	return key, errors.Join(d.Sync(), d.Close())
}

// sealMirror answers a mirror's configs as they are stored.
func (s *sealer) sealMirror(m *metadata.Mirror) (map[string]string, error) {
	stored := maps.Clone(m.Configs)
	for name, value := range m.Configs {
		if d := metadata.MirrorConfigDef(name); d == nil || !d.Secret {
			continue
		}
		sealed, err := s.seal(value, sealContext(m.Name, name))
		if err != nil {
			return nil, fmt.Errorf("seal %s of mirror %s: %w", name, m.Name, err)
		}
		stored[name] = sealed
	}
	for name, sealed := range m.Unopened {
		if _, set := stored[name]; !set {
			stored[name] = sealed
		}
	}
	return stored, nil
}

// openMirror answers a mirror from its stored configs. A secret that does not
// open stays sealed and is reported: the mirror fails to log in at its source,
// but the rest of the cluster works, and nothing is lost should the right key
// file come back.
func (s *sealer) openMirror(mirror string, stored map[string]string) *metadata.Mirror {
	m := &metadata.Mirror{Name: mirror, Configs: make(map[string]string, len(stored))}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		value := stored[name]
		if d := metadata.MirrorConfigDef(name); d == nil || !d.Secret {
			m.Configs[name] = value
			continue
		}
		plain, err := s.unseal(value, sealContext(mirror, name))
		if err != nil {
			s.logger.Error("a stored secret does not open; set it anew or bring the key file back",
				"mirror", mirror, "config", name, "key_file", s.file, "error", err)
			if m.Unopened == nil {
				m.Unopened = make(map[string]string)
			}
			m.Unopened[name] = value
			continue
		}
		m.Configs[name] = plain
	}
	return m
}

// derive makes a secret for another purpose of the same key.
func (s *sealer) derive(purpose string) []byte {
	h := hmac.New(sha256.New, s.secret)
	h.Write([]byte("lockstep derive\x00" + purpose))
	return h.Sum(nil)
}

// seal answers a secret as it is stored, bound to its place.
func (s *sealer) seal(secret string, place []byte) (string, error) {
	nonce := make([]byte, s.aead.NonceSize())
	if _, err := io.ReadFull(s.rand, nonce); err != nil {
		return "", err
	}
	box := s.aead.Seal(nonce, nonce, []byte(secret), place)
	return sealedPrefix + s.fingerprint + ":" + base64.RawStdEncoding.EncodeToString(box), nil
}

// unseal answers the secret that was stored at a place.
func (s *sealer) unseal(value string, place []byte) (string, error) {
	rest, ok := strings.CutPrefix(value, sealedPrefix)
	fingerprint, text, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return "", errors.New("not a sealed value")
	}
	key := &s.sealKey
	if s.older != nil && fingerprint == s.older.fingerprint {
		key = s.older
		s.stale.Store(true)
	}
	if fingerprint != key.fingerprint {
		return "", fmt.Errorf("sealed with key %s, %s holds %s", fingerprint, s.file, s.fingerprint)
	}
	box, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(box) < key.aead.NonceSize() {
		return "", errors.New("damaged")
	}
	n := key.aead.NonceSize()
	plain, err := key.aead.Open(nil, box[:n], box[n:], place)
	if err != nil {
		return "", errors.New("damaged, or not sealed for this place")
	}
	return string(plain), nil
}

func sealContext(mirror, name string) []byte { return []byte(mirror + "\x00" + name) }
