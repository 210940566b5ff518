package authn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
)

// Plain is the mechanism that sends the password (RFC 4616).
const Plain = "PLAIN"

// plainUsers are the user_NAME options of a listener's PlainLoginModule.
type plainUsers struct {
	// digests are compared instead of passwords: they have one length, so that
	// the comparison takes one time.
	digests map[string][sha256.Size]byte
}

func openPlain(jaas string) (*plainUsers, error) {
	options, err := loginModule(jaas, clientconfig.PlainModule)
	if err != nil {
		return nil, err
	}
	p := &plainUsers{digests: map[string][sha256.Size]byte{}}
	for name, password := range options {
		if user, ok := strings.CutPrefix(name, "user_"); ok && user != "" {
			p.digests[user] = sha256.Sum256([]byte(password.Reveal()))
		}
	}
	if len(p.digests) == 0 {
		return nil, errors.New("names no user; write user_alice=\"password\" for each")
	}
	return p, nil
}

// loginModule reads a jaas config that has to name one module.
func loginModule(jaas, want string) (map[string]clientconfig.Secret, error) {
	module, options, err := clientconfig.ParseJAAS(jaas)
	if err == nil && module != want {
		err = fmt.Errorf("names another login module than %s", want)
	}
	return options, err
}

type plainExchange struct {
	users *plainUsers
	name  string
}

func (x *plainExchange) Name() string { return x.name }

func (x *plainExchange) Step(_ context.Context, token []byte) ([]byte, *Identity, error) {
	parts := strings.Split(string(token), "\x00")
	if len(parts) != 3 {
		return nil, nil, refuse(fmt.Sprintf("Invalid SASL/PLAIN response: expected 3 tokens, got %d", len(parts)), nil)
	}
	x.name = parts[1]
	switch {
	case parts[1] == "":
		return nil, nil, refuse("Authentication failed: username not specified", nil)
	case parts[2] == "":
		return nil, nil, refuse("Authentication failed: password not specified", nil)
	}
	want, known := x.users.digests[x.name]
	got := sha256.Sum256([]byte(parts[2]))
	same := subtle.ConstantTimeCompare(want[:], got[:]) == 1
	if !known || !same {
		return nil, nil, refuse("Authentication failed: Invalid username or password", nil)
	}
	if parts[0] != "" && parts[0] != x.name {
		return nil, nil, refuse("Authentication failed: Client requested an authorization id that is different from username", nil)
	}
	return nil, &Identity{Name: x.name}, nil
}
