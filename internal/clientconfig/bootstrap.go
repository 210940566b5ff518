package clientconfig

import (
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// listenerPrefix is what an address copied from a broker's listeners carries:
// SASL_SSL://host:port. Kafka's clients ignore it and so do we.
var listenerPrefix = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*://`)

func (p *parser) bootstrap() error {
	list, err := ParseBootstrap(p.get(keyBootstrap))
	if err != nil {
		return &KeyError{Key: keyBootstrap, Err: err}
	}
	p.c.Bootstrap = list
	return nil
}

// ParseBootstrap reads a list of host:port. An empty host means localhost
// (spec 4.2); repeated addresses count once.
func ParseBootstrap(value string) ([]string, error) {
	var list []string
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		addr, err := parseAddress(item)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(list, addr) {
			list = append(list, addr)
		}
	}
	return list, nil
}

func parseAddress(item string) (string, error) {
	bare := item[len(listenerPrefix.FindString(item)):]
	host, port, err := net.SplitHostPort(bare)
	if err != nil {
		return "", &net.AddrError{Err: "is not host:port", Addr: item}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", &net.AddrError{Err: "has no port between 1 and 65535", Addr: item}
	}
	if host == "" {
		host = "localhost"
	}
	if strings.ContainsAny(host, " \t/@") {
		return "", &net.AddrError{Err: "is not host:port", Addr: item}
	}
	return net.JoinHostPort(host, port), nil
}
