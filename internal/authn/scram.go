package authn

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/xdg-go/scram"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ScramStore is where credentials are looked up.
type ScramStore struct {
	// Find answers a user's credential, nil if there is none.
	Find func(user string, m metadata.ScramMechanism) *metadata.ScramCredential
	// Iterations is a count that users of the mechanism have.
	Iterations func(m metadata.ScramMechanism) int32
	// Decoy is a secret of the cluster, from which users who do not exist get a
	// credential: the same salt each time it is asked for, as one who does.
	Decoy []byte
}

// scramUsers is one SCRAM mechanism (RFC 5802, RFC 7677). Messages and proofs are
// the library's; who is known, and that nobody learns it, is ours.
type scramUsers struct {
	mechanism metadata.ScramMechanism
	store     ScramStore
}

// exchange makes a library server for one login, so that its lookup may note the
// name.
func (s *scramUsers) exchange() *scramExchange {
	x := &scramExchange{users: s}
	hash := scram.SHA256
	if s.mechanism == metadata.ScramSHA512 {
		hash = scram.SHA512
	}
	server, err := hash.NewServer(x.credential)
	if err != nil {
		x.broken = err
		return x
	}
	x.talk = server.NewConversation()
	return x
}

type scramExchange struct {
	users  *scramUsers
	talk   *scram.ServerConversation
	name   string
	known  bool
	broken error

	keys *metadata.ScramCredential
	// The client's first message without and with only its head, its nonce, and our
	// answer; empty before.
	bare, head, nonce, first string
}

func (x *scramExchange) Name() string { return x.name }

func (x *scramExchange) credential(user string) (scram.StoredCredentials, error) {
	x.name = user
	if !utf8.ValidString(user) {
		return scram.StoredCredentials{}, errors.New("the user name is not UTF-8")
	}
	c := x.users.store.Find(user, x.users.mechanism)
	if x.known = c != nil && len(c.StoredKey) > 0; !x.known {
		c = x.users.decoyOf(user)
	}
	x.keys = c
	return scram.StoredCredentials{
		KeyFactors: scram.KeyFactors{Salt: string(c.Salt), Iters: int(c.Iterations)},
		StoredKey:  c.StoredKey, ServerKey: c.ServerKey,
	}, nil
}

// decoyOf is what an unknown user is tested against. No password fits it, and known
// is false besides.
func (s *scramUsers) decoyOf(user string) *metadata.ScramCredential {
	h := hmac.New(sha256.New, s.store.Decoy)
	h.Write([]byte(s.mechanism.String() + "\x00" + user))
	random := h.Sum(nil)
	keys := make([]byte, s.mechanism.Size())
	copy(keys, random)
	return &metadata.ScramCredential{Iterations: s.store.Iterations(s.mechanism), Salt: metadata.ScramSalt(random), StoredKey: keys, ServerKey: keys}
}

func (x *scramExchange) Step(_ context.Context, token []byte) ([]byte, *Identity, error) {
	fail := func(cause error) ([]byte, *Identity, error) {
		return nil, nil, invalidCredentials(x.users.mechanism.String(), cause)
	}
	if x.broken != nil {
		return fail(x.broken)
	}
	if x.first == "" {
		answer, err := x.talk.Step(string(token))
		if err != nil {
			// The library's text may quote the client's message.
			return fail(nil)
		}
		parts := strings.SplitN(string(token), ",", 3) // the library has checked that they are there
		x.head, x.bare, x.first = parts[0]+","+parts[1]+",", parts[2], answer
		x.nonce = strings.TrimPrefix(strings.Split(x.bare, ",")[1], "r=")
		return []byte(answer), nil, nil
	}
	answer, ok := x.final(string(token))
	if !ok || !x.known {
		return fail(nil)
	}
	if id := x.talk.AuthzID(); id != "" && id != x.name {
		return nil, nil, refuse("Authentication failed: Client requested an authorization id that is different from username", nil)
	}
	return []byte(answer), &Identity{Name: x.name}, nil
}

// final checks the client's proof. The library's own check refuses librdkafka, which in
// the releases of today writes its own nonce twice; Kafka asks that it end in the server's
// part, which is what makes a message of another login worthless.
func (x *scramExchange) final(message string) (answer string, ok bool) {
	without, text, found := cutLast(message, ",p=")
	fields := strings.Split(without, ",")
	if !found || len(fields) < 2 {
		return "", false
	}
	head, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(fields[0], "c="))
	if err != nil || string(head) != x.head {
		return "", false
	}
	ours := strings.TrimPrefix(strings.Split(x.first, ",")[0], "r=")
	if fields[1] != "r="+ours && fields[1] != "r="+x.nonce+ours {
		return "", false
	}
	proof, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(proof) != x.users.mechanism.Size() {
		return "", false
	}
	auth := x.bare + "," + x.first + "," + without
	sign := func(key []byte) []byte {
		h := hmac.New(x.users.mechanism.Hash(), key)
		h.Write([]byte(auth))
		return h.Sum(nil)
	}
	subtle.XORBytes(proof, proof, sign(x.keys.StoredKey))
	stored := x.users.mechanism.Hash()()
	stored.Write(proof)
	if !hmac.Equal(stored.Sum(nil), x.keys.StoredKey) {
		return "", false
	}
	return "v=" + base64.StdEncoding.EncodeToString(sign(x.keys.ServerKey)), true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
