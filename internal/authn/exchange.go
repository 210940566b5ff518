package authn

import (
	"context"
	"time"
)

// Exchange is one login of one client, from its first token on. It belongs to one
// goroutine and is used once.
type Exchange interface {
	// Step takes the client's next token. The login goes on while id is nil and
	// there is no error; with an id it has succeeded, and answer is the last word
	// to the client. An error is a *Refusal.
	Step(ctx context.Context, token []byte) (answer []byte, id *Identity, err error)
	// Name is who the client says it is, once it has: for delays and the log, and
	// proof of nothing.
	Name() string
}

// Identity is a client that has proved who it is.
type Identity struct {
	Name string
	// Expires is when the proof ends: a token's expiry. Zero: never.
	Expires time.Time
}

// Refusal is a login that failed. Its text is for the client and tells nothing that
// helps to guess; Cause, which may be nil, is for the log and holds no secret.
type Refusal struct {
	Message string
	Cause   error
}

func (r *Refusal) Error() string { return r.Message }
func (r *Refusal) Unwrap() error { return r.Cause }

func refuse(message string, cause error) error { return &Refusal{message, cause} }

func invalidCredentials(mechanism string, cause error) error {
	return refuse("Authentication failed during authentication due to invalid credentials with SASL mechanism "+mechanism, cause)
}
