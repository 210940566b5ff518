package config

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
)

// Listener is one entry of listeners with what clients are told about it.
type Listener struct {
	Name           string
	Protocol       string
	Address        string // host:port to bind
	AdvertisedHost string
	AdvertisedPort int32 // 0: the port that was bound

	Loopback          bool              // only this machine reaches it
	MaxConnectionRate int               // listener.name.NAME.max.connection.creation.rate; 0: no rate of its own
	MaxConnections    int               // listener.name.NAME.max.connections; 0: no limit of its own
	Security          map[string]string // its ssl.* and sasl.* keys; secrets in clear
}

// Listeners parses listeners, advertised.listeners and the protocol map, and
// answers those of the broker: none if this process is not one.
func (c *Config) Listeners() ([]Listener, error) {
	protocols, err := protocolMap(c.String("listener.security.protocol.map"))
	if err != nil {
		return nil, err
	}
	advertised, err := endpoints("advertised.listeners", c.String("advertised.listeners"))
	if err != nil {
		return nil, err
	}
	bound, err := endpoints("listeners", c.String("listeners"))
	if err != nil {
		return nil, err
	}
	var out []Listener
	seen := map[string]bool{}
	for _, b := range bound {
		if c.isControllerListener(b.name) {
			continue // see Quorum
		}
		if seen[b.name] {
			return nil, fmt.Errorf("listeners: %s appears twice", b.name)
		}
		seen[b.name] = true
		protocol, ok := protocols[b.name]
		if !ok {
			protocol = b.name
		}
		switch protocol {
		case clientconfig.Plaintext, clientconfig.SSL, clientconfig.SASLPlaintext, clientconfig.SASLSSL:
		default:
			return nil, fmt.Errorf("listeners: %s has security protocol %s, which is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL; see listener.security.protocol.map", b.name, protocol)
		}
		l := Listener{Name: b.name, Protocol: protocol, Address: net.JoinHostPort(b.host, strconv.Itoa(b.port)), AdvertisedHost: b.host}
		l.Loopback, l.Security = loopback(b.host), c.security(b.name, protocol)
		l.MaxConnections, _ = strconv.Atoi(l.Security["max.connections"])
		l.MaxConnectionRate, _ = strconv.Atoi(l.Security[connectionRate])
		for _, a := range advertised {
			if a.name == b.name {
				l.AdvertisedHost, l.AdvertisedPort = a.host, int32(a.port)
			}
		}
		if ip := net.ParseIP(l.AdvertisedHost); l.AdvertisedHost == "" || ip != nil && ip.IsUnspecified() {
			host, err := os.Hostname()
			if err != nil {
				return nil, fmt.Errorf("advertised.listeners: this machine has no name to tell clients, set it: %w", err)
			}
			l.AdvertisedHost = host
		}
		out = append(out, l)
	}
	for _, a := range advertised {
		if !seen[a.name] && !c.isControllerListener(a.name) {
			return nil, fmt.Errorf("advertised.listeners: %s is not in listeners", a.name)
		}
	}
	switch {
	case !c.IsBroker() && len(out) > 0 && c.IsSet("listeners"):
		return nil, fmt.Errorf("listeners: %s is none of controller.listener.names, and process.roles has no broker", out[0].Name)
	case !c.IsBroker():
		return nil, nil
	case len(out) == 0:
		return nil, fmt.Errorf("listeners: no listener for clients")
	}
	return out, nil
}

// connectionRate may stand for one listener; without a prefix it is that of all.
const connectionRate = "max.connection.creation.rate"

type endpoint struct {
	name string
	host string
	port int
}

func endpoints(key, value string) ([]endpoint, error) {
	var out []endpoint
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, rest, ok := strings.Cut(item, "://")
		if !ok || name == "" {
			return nil, fmt.Errorf("%s: %q is not NAME://HOST:PORT", key, item)
		}
		host, portText, err := net.SplitHostPort(rest)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not NAME://HOST:PORT: %v", key, item, err)
		}
		port, err := strconv.Atoi(portText)
		if err != nil || port < 0 || port > 65535 {
			return nil, fmt.Errorf("%s: %q has no valid port", key, item)
		}
		out = append(out, endpoint{strings.ToUpper(name), host, port})
	}
	return out, nil
}

func protocolMap(value string) (map[string]string, error) {
	out := map[string]string{}
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, protocol, ok := strings.Cut(item, ":")
		if !ok {
			return nil, fmt.Errorf("listener.security.protocol.map: %q is not NAME:PROTOCOL", item)
		}
		out[strings.ToUpper(strings.TrimSpace(name))] = strings.ToUpper(strings.TrimSpace(protocol))
	}
	return out, nil
}
