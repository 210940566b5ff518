package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// keySet is the public keys that tokens are signed with, from a file or an https
// address. It is asked anew when it is old, and when a token names a key that is not
// in it.
type keySet struct {
	address *url.URL
	trust   map[string]string // ssl.truststore.* for the address
	clock   clock.Clock
	refresh time.Duration // sasl.oauthbearer.jwks.endpoint.refresh.ms
	backoff time.Duration // least time between two tries

	// fetching is held while the keys are asked for, so that many tokens with
	// unknown keys are one question.
	fetching sync.Mutex
	mu       struct {
		sync.Mutex
		keys           jose.JSONWebKeySet
		fetched, tried time.Time
		err            error
	}
}

const (
	maxKeySetBytes = 1 << 20
	keySetTimeout  = 5 * time.Second
)

func openKeySet(address string, trust map[string]string, refresh, backoff time.Duration, clk clock.Clock) (*keySet, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("is no address")
	}
	switch {
	case u.Scheme == "file" && u.Path != "":
	case u.Scheme == "https" && u.Host != "":
	default:
		return nil, fmt.Errorf("%q is neither https://… nor file:///…", u.Redacted())
	}
	return &keySet{address: u, trust: trust, clock: clk, refresh: refresh, backoff: backoff}, nil
}

// find answers the key that a token names; with no name, the only one there is.
func (k *keySet) find(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	key, fresh := k.cached(id)
	if key != nil && fresh {
		return key, nil
	}
	k.fetching.Lock()
	defer k.fetching.Unlock()
	if again, fresh := k.cached(id); again != nil && fresh {
		return again, nil
	}
	if err := k.fetch(ctx); err != nil && key == nil {
		return nil, err
	}
	if again, _ := k.cached(id); again != nil {
		return again, nil
	}
	return nil, fmt.Errorf("the key set has no key %q", id)
}

func (k *keySet) cached(id string) (key *jose.JSONWebKey, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh = k.clock.Now().Sub(k.mu.fetched) < k.refresh
	if id == "" && len(k.mu.keys.Keys) == 1 {
		return &k.mu.keys.Keys[0], fresh
	}
	for i := range k.mu.keys.Keys {
		if c := &k.mu.keys.Keys[i]; c.KeyID == id && id != "" && c.Use != "enc" {
			return c, fresh
		}
	}
	return nil, fresh
}

// fetch asks for the keys, unless that was done a moment ago. The set in hand stays
// when there is no good answer.
func (k *keySet) fetch(ctx context.Context) error {
	now := k.clock.Now()
	k.mu.Lock()
	recent, err := now.Sub(k.mu.tried) < k.backoff, k.mu.err
	if !recent {
		k.mu.tried = now
	}
	k.mu.Unlock()
	if recent {
		return err
	}
	keys, err := k.read(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.err = err; err == nil {
		k.mu.keys, k.mu.fetched = keys, now
	}
	return err
}

func (k *keySet) read(ctx context.Context) (keys jose.JSONWebKeySet, err error) {
	var in io.ReadCloser
	if k.address.Scheme == "file" {
		in, err = os.Open(k.address.Path)
	} else {
		in, err = k.get(ctx)
	}
	if err != nil {
		return keys, fmt.Errorf("key set: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxKeySetBytes+1))
	if err == nil && len(text) > maxKeySetBytes {
		err = fmt.Errorf("more than %d bytes", maxKeySetBytes)
	}
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err == nil && len(keys.Keys) == 0 {
		err = errors.New("no key in it")
	}
	if err != nil {
		return keys, fmt.Errorf("key set %s: %w", k.address.Redacted(), err)
	}
	return keys, nil
}

func (k *keySet) get(ctx context.Context) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.address.String(), nil)
	if err != nil {
		return nil, err
	}
	// Keys are asked for rarely: each time the trust store is read as it is then.
	tls, err := clientconfig.TrustTLS(k.trust)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tls, DisableKeepAlives: true},
		Timeout:   keySetTimeout,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > 3 {
				return errors.New("redirected to another place than https")
			}
			return nil
		},
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("%s answers %s", k.address.Redacted(), resp.Status)
	}
	return resp.Body, nil
}
