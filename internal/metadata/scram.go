package metadata

import (
	"cmp"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"math/big"
	"strings"

	"github.com/RaduBerinde/btreemap"
)

// ScramMechanism is a SCRAM mechanism by Kafka's number.
type ScramMechanism int8

const (
	ScramSHA256 ScramMechanism = 1
	ScramSHA512 ScramMechanism = 2
)

// Bounds of the iteration count. Below the first, guessing passwords from stolen
// credentials is cheap (RFC 7677); above the second, one login costs a client
// whole seconds.
const (
	MinScramIterations = 4096
	MaxScramIterations = 16384
)

// ScramMechanisms are all of them.
func ScramMechanisms() []ScramMechanism { return []ScramMechanism{ScramSHA256, ScramSHA512} }

// String is the name that clients ask for, "" for a number that is none.
func (m ScramMechanism) String() string {
	switch m {
	case ScramSHA256:
		return "SCRAM-SHA-256"
	case ScramSHA512:
		return "SCRAM-SHA-512"
	}
	return ""
}

// ParseScramMechanism reads a name; 0 is none.
func ParseScramMechanism(name string) ScramMechanism {
	for _, m := range ScramMechanisms() {
		if m.String() == name {
			return m
		}
	}
	return 0
}

// Hash is the mechanism's hash function.
func (m ScramMechanism) Hash() func() hash.Hash {
	if m == ScramSHA512 {
		return sha512.New
	}
	return sha256.New
}

// Size is the length of the hash, and of each key.
func (m ScramMechanism) Size() int { return m.Hash()().Size() }

// ScramCredential is what is kept of a password (RFC 5802): enough to recognise
// it, not enough to log in with.
type ScramCredential struct {
	User       string
	Mechanism  ScramMechanism
	Iterations int32
	Salt       []byte
	// StoredKey and ServerKey are nil if they could not be opened, because the
	// key that sealed them is gone: the user is there and cannot log in.
	StoredKey, ServerKey []byte
}

// SaltedPassword is the slow step from a password to what clients and tools send.
func (m ScramMechanism) SaltedPassword(password string, salt []byte, iterations int) ([]byte, error) {
	return pbkdf2.Key(m.Hash(), password, salt, iterations, m.Size())
}

// NewScramCredential derives the keys from a salted password, which itself must
// not be kept: it is as good as the password.
func NewScramCredential(user string, m ScramMechanism, iterations int32, salt, saltedPassword []byte) *ScramCredential {
	sign := func(text string) []byte {
		h := hmac.New(m.Hash(), saltedPassword)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := m.Hash()()
	stored.Write(sign("Client Key"))
	return &ScramCredential{
		User: user, Mechanism: m, Iterations: iterations, Salt: salt,
		StoredKey: stored.Sum(nil), ServerKey: sign("Server Key"),
	}
}

// ScramSalt makes a salt of at least 17 random bytes in the form of Kafka's tools,
// so that one that stands for nothing (see internal/authn) looks like any other.
func ScramSalt(random []byte) []byte {
	n := new(big.Int).SetBytes(random[:17])
	return []byte(n.Rsh(n, 6).Text(36))
}

// scramKey orders credentials by user first, so that one user's are one range.
type scramKey struct {
	user      string
	mechanism ScramMechanism
}

func compareScram(a, b scramKey) int {
	if c := strings.Compare(a.user, b.user); c != 0 {
		return c
	}
	return cmp.Compare(a.mechanism, b.mechanism)
}

// Scram returns a user's credential, or nil.
func (img *Image) Scram(user string, m ScramMechanism) *ScramCredential {
	_, c, _ := img.scram.Get(scramKey{user, m})
	return c
}

// ScramOf returns all credentials of one user.
func (img *Image) ScramOf(user string) []*ScramCredential {
	var list []*ScramCredential
	for k, c := range img.scram.Ascend(btreemap.GE(scramKey{user: user}), btreemap.Max[scramKey]()) {
		if k.user != user {
			break
		}
		list = append(list, c)
	}
	return list
}

// ScramIterations is the count that the first user of a mechanism has, or the least
// allowed: operators use one.
func (img *Image) ScramIterations(m ScramMechanism) int32 {
	for c := range values(img.scram) {
		if c.Mechanism == m {
			return c.Iterations
		}
	}
	return MinScramIterations
}

// ScramCredentials returns all credentials by user and mechanism.
func (img *Image) ScramCredentials() []*ScramCredential { return collect(img.scram) }

// PutScram adds or replaces a credential.
func (e *Editor) PutScram(c *ScramCredential) {
	e.next.scram.ReplaceOrInsert(scramKey{c.User, c.Mechanism}, c)
}

// DeleteScram removes a credential.
func (e *Editor) DeleteScram(user string, m ScramMechanism) {
	e.next.scram.Delete(scramKey{user, m})
}
