package authn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// OAuthBearer is the mechanism that sends a token (RFC 7628).
const OAuthBearer = "OAUTHBEARER"

// tokenAlgorithms are the signatures that a token may have: those whose key to
// check is not the key to sign. That leaves out "none" and the HS family, with which
// whoever can read the published keys could sign.
var tokenAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// maxTokenBytes bounds a token before anything is decoded.
const maxTokenBytes = 32 << 10

// tokens checks tokens.
type tokens struct {
	keys      *keySet
	clock     clock.Clock
	issuer    string   // "" is not compared
	audiences []string // one of them has to be named; none: not compared
	skew      time.Duration
	subject   string // claim with the principal's name
}

// check answers whose token it is and when that ends.
func (t *tokens) check(ctx context.Context, token string) (*Identity, error) {
	if len(token) > maxTokenBytes {
		return nil, fmt.Errorf("a token of %d bytes", len(token))
	}
	signed, err := jwt.ParseSigned(token, tokenAlgorithms)
	if err != nil {
		// The library's text may quote the token.
		return nil, errors.New("not a signed token, or signed in a way that is not allowed")
	}
	key, err := t.keys.find(ctx, signed.Headers[0].KeyID)
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" && key.Algorithm != signed.Headers[0].Algorithm {
		return nil, errors.New("the key is meant for another algorithm")
	}
	var claims jwt.Claims
	all := map[string]any{}
	if err := signed.Claims(key.Key, &claims, &all); err != nil {
		return nil, errors.New("the signature is wrong")
	}
	if claims.Expiry == nil {
		return nil, errors.New("the token never expires")
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Issuer: t.issuer, AnyAudience: t.audiences, Time: t.clock.Now()}, t.skew); err != nil {
		return nil, err
	}
	name, _ := all[t.subject].(string)
	if strings.TrimSpace(name) == "" {
		return nil, fmt.Errorf("the token has no claim %s", t.subject)
	}
	return &Identity{Name: name, Expires: claims.Expiry.Time()}, nil
}

type bearerExchange struct {
	tokens *tokens
	name   string
	failed error // why the client was told so; it acknowledges and is then refused
}

func (x *bearerExchange) Name() string { return x.name }

// invalidToken is what RFC 7628 tells the client before the login fails.
const invalidToken = `{"status":"invalid_token"}`

func (x *bearerExchange) Step(ctx context.Context, token []byte) ([]byte, *Identity, error) {
	if x.failed != nil {
		return nil, nil, refuse(invalidToken, x.failed)
	}
	authz, bearer, err := parseBearer(token)
	if err != nil {
		return nil, nil, invalidCredentials(OAuthBearer, err)
	}
	id, err := x.tokens.check(ctx, bearer)
	if err != nil {
		x.failed = err
		return []byte(invalidToken), nil, nil
	}
	x.name = id.Name
	if authz != "" && authz != id.Name {
		return nil, nil, refuse("Authentication failed: Client requested an authorization id that is different from the token's principal name", nil)
	}
	return []byte{}, id, nil
}

// parseBearer reads the client's message: n,a=NAME, then fields that end with 0x01,
// of which auth holds the token, and a last 0x01. Other fields are extensions, which
// nothing here looks at.
func parseBearer(message []byte) (authz, token string, err error) {
	head, rest, ok := bytes.Cut(message, []byte{1})
	parts := strings.Split(string(head), ",")
	if !ok || len(parts) != 3 || parts[0] != "n" || parts[2] != "" || !bytes.HasSuffix(rest, []byte{1, 1}) {
		return "", "", errors.New("not a message of RFC 7628")
	}
	if parts[1] != "" {
		if authz, ok = strings.CutPrefix(parts[1], "a="); !ok {
			return "", "", errors.New("not a message of RFC 7628")
		}
		authz = strings.NewReplacer("=2C", ",", "=3D", "=").Replace(authz)
	}
	for field := range strings.SplitSeq(strings.TrimSuffix(string(rest), "\x01\x01"), "\x01") {
		key, value, _ := strings.Cut(field, "=")
		if key != "auth" {
			continue
		}
		scheme, bearer, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "bearer") || bearer == "" {
			return "", "", errors.New("another scheme than Bearer")
		}
		return authz, strings.TrimSpace(bearer), nil
	}
	return "", "", errors.New("no field auth")
}
