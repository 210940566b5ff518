package main

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/authn"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/kafka"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// listeners are the listeners' certificates and mechanisms, and the goroutines that
// watch their files.
type listeners struct {
	open    []*authn.Listener
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// openListeners reads what the listeners need before a port is bound.
func openListeners(cfg *config.Config, b *broker) ([]kafka.Listener, error) {
	configured, err := cfg.Listeners()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.listeners = &listeners{cancel: cancel}
	store := authn.ScramStore{
		Find: func(user string, m metadata.ScramMechanism) *metadata.ScramCredential {
			return b.controller.Image().Scram(user, m)
		},
		Iterations: func(m metadata.ScramMechanism) int32 { return b.controller.Image().ScramIterations(m) },
		Decoy:      b.controller.DeriveSecret("decoys of SCRAM"),
	}
	var out []kafka.Listener
	for _, l := range configured {
		a, err := authn.Open(authn.Options{
			Name: l.Name, Protocol: l.Protocol, Loopback: l.Loopback, ClearPasswords: cfg.Bool("sasl.plaintext.passwords.allow"),
			Props: l.Security, Scram: store, Clock: clock.System(), Logger: b.logger.With("part", "listener"),
		})
		if err != nil {
			return nil, err
		}
		b.listeners.open = append(b.listeners.open, a)
		b.listeners.running.Go(func() { a.Watch(ctx) })
		out = append(out, kafka.Listener{
			Name: l.Name, Protocol: l.Protocol, Address: l.Address,
			AdvertisedHost: l.AdvertisedHost, AdvertisedPort: l.AdvertisedPort,
			TLS: a.TLS, SASL: a.SASL, CertificateName: a.CertificateName, MaxConnections: l.MaxConnections, MaxConnectionRate: l.MaxConnectionRate,
		})
	}
	return out, nil
}

func (l *listeners) close() {
	l.cancel()
	l.running.Wait()
	for _, a := range l.open {
		a.Close()
	}
}

// perIPOverrides looks up the hosts of max.connections.per.ip.overrides, as Kafka does
// at its start.
func perIPOverrides(ctx context.Context, cfg *config.Config) (map[string]int, error) {
	byHost, err := cfg.PerIPOverrides()
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for host, n := range byHost {
		if ip := net.ParseIP(host); ip != nil {
			out[ip.String()] = n
			continue
		}
		addrs, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("max.connections.per.ip.overrides: %w", err)
		}
		for _, a := range addrs {
			out[a] = n
		}
	}
	return out, nil
}
