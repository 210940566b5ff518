package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// quorumKeys are about the controllers: who they are, how nodes reach them, and
// where the metadata is.
var quorumKeys = []key{
	{name: "cluster.secret", kind: text, def: "", secret: true, doc: "What the nodes of a cluster know each other by, and what secrets in the metadata are sealed with: at least 16 characters, better 32 random ones, the same on all nodes. Required where there are several. A single node without it has the file cluster.key."},
	{name: "controller.listener.names", kind: text, def: "", list: true, doc: "Name of the listener in listeners on which nodes reach this controller: one port, on which everybody shows a certificate that cluster.secret gives. Default: the address of this node in controller.quorum.voters."},
	{name: "controller.quorum.voters", kind: text, def: "", list: true, doc: "ID@HOST:PORT of the controllers, 3 or 5 of them, the same on all nodes. The first time all have to be started to found the cluster. A controller that a cluster does not know yet joins it by itself. Empty: this node is a cluster of one."},
	{name: "controller.quorum.bootstrap.servers", kind: text, def: "", list: true, doc: "HOST:PORT of some controllers of a cluster that exists, instead of controller.quorum.voters: a controller joins it, a broker follows it."},
	{name: "metadata.etcd.listen.client", kind: text, def: "", doc: "HOST:PORT of a port for etcdctl, without TLS: whoever reaches it reads and writes the metadata. Empty: none."},
	{name: "metadata.etcd.heartbeat.interval.ms", kind: milliseconds, def: "50", min: 10, max: 5000, doc: "Heartbeats between controllers; ten without one begin an election. The same on all of them; 100 where disks are slow. A controller without a listener has nobody to lose and does not use it."},
	{name: "metadata.etcd.quota.bytes", kind: bytesize, def: "4294967296", min: 16 << 20, max: 8 << 30, doc: "What the metadata may take on the disk of each controller. When one reaches it nothing is written on any, not even deletions, until there is room, which is made without a hand where history fills it; /readyz says so. The same on all controllers."},
	{name: "metadata.etcd.endpoints", kind: text, def: "", list: true, doc: "URLs of an etcd of your own for the metadata, instead of one inside of the controllers. It has to compact its history by itself (--auto-compaction-mode)."},
	{name: "metadata.etcd.prefix", kind: text, def: "", doc: "Stands before every key in that etcd, so that several clusters can share it."},
	{name: "metadata.etcd.username", kind: text, def: "", doc: "User of that etcd."},
	{name: "metadata.etcd.password", kind: text, def: "", secret: true, doc: "The user's password."},
	{name: "metadata.etcd.tls.ca", kind: text, def: "", doc: "PEM file with the authority of that etcd's certificate. Default: the system's."},
	{name: "metadata.etcd.tls.cert", kind: text, def: "", doc: "PEM file with the certificate that this node shows it."},
	{name: "metadata.etcd.tls.key", kind: text, def: "", doc: "PEM file with that certificate's key."},
}

// Quorum fills in who the controllers are and how they are reached. It reads the
// files of an operator's etcd.
func (c *Config) Quorum(o *controller.Options) error {
	var err error
	if o.Voters, err = controller.ParseVoters(c.String("controller.quorum.voters")); err != nil {
		return fmt.Errorf("controller.quorum.voters: %w", err)
	}
	o.NodeID = int32(c.Int("node.id"))
	o.BrokerOnly = !c.IsController()
	o.Secret = c.String("cluster.secret")
	o.ClientListen = c.String("metadata.etcd.listen.client")
	o.SessionTimeout = c.Duration("broker.session.timeout.ms")
	if c.Bool("auto.leader.rebalance.enable") {
		o.BalanceInterval = time.Duration(c.Int("leader.imbalance.check.interval.seconds")) * time.Second
		o.BalancePercentage = int(c.Int("leader.imbalance.per.broker.percentage"))
	}
	o.Tick = c.Duration("metadata.etcd.heartbeat.interval.ms")
	o.QuotaBytes = c.Int("metadata.etcd.quota.bytes")
	for _, addr := range metadata.SplitList(c.String("controller.quorum.bootstrap.servers")) {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("controller.quorum.bootstrap.servers: %q is not HOST:PORT", addr)
		}
		o.Bootstrap = append(o.Bootstrap, addr)
	}
	if o.External, err = c.externalEtcd(); err != nil {
		return err
	}
	if !o.BrokerOnly {
		return c.controllerListener(o)
	}
	return nil
}

// isControllerListener tells whether a name in listeners is the controller's.
func (c *Config) isControllerListener(name string) bool {
	return slices.Contains(metadata.SplitList(strings.ToUpper(c.String("controller.listener.names"))), strings.ToUpper(name))
}

// controllerListener finds where this controller listens, and what the others call
// that: as they name it in the list of voters, or as advertised.listeners does.
func (c *Config) controllerListener(o *controller.Options) error {
	bound, err := endpoints("listeners", c.String("listeners"))
	if err != nil {
		return err
	}
	advertised, err := endpoints("advertised.listeners", c.String("advertised.listeners"))
	if err != nil {
		return err
	}
	address := func(list []endpoint) string {
		i := slices.IndexFunc(list, func(e endpoint) bool { return c.isControllerListener(e.name) })
		if i < 0 {
			return ""
		}
		return net.JoinHostPort(list[i].host, strconv.Itoa(list[i].port))
	}
	o.Listen, o.Advertised = address(bound), address(advertised)
	if i := slices.IndexFunc(o.Voters, func(v controller.Voter) bool { return v.ID == o.NodeID }); i >= 0 {
		o.Advertised = o.Voters[i].Addr
		if o.Listen == "" {
			o.Listen = o.Advertised
		}
	}
	if o.Listen == "" || o.Advertised != "" {
		return nil
	}
	host, port, _ := net.SplitHostPort(o.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return fmt.Errorf("advertised.listeners: this machine has no name to tell other nodes, set it: %w", err)
		}
	}
	o.Advertised = net.JoinHostPort(host, port)
	return nil
}

func (c *Config) externalEtcd() (*controller.External, error) {
	x := &controller.External{
		Endpoints: metadata.SplitList(c.String("metadata.etcd.endpoints")), Prefix: c.String("metadata.etcd.prefix"),
		Username: c.String("metadata.etcd.username"), Password: c.String("metadata.etcd.password"),
	}
	if len(x.Endpoints) == 0 {
		for _, k := range []string{"prefix", "username", "password", "tls.ca", "tls.cert", "tls.key"} {
			if c.String("metadata.etcd."+k) != "" {
				return nil, fmt.Errorf("metadata.etcd.%s: has no meaning without metadata.etcd.endpoints", k)
			}
		}
		return nil, nil
	}
	secure := 0
	for _, e := range x.Endpoints {
		switch {
		case strings.HasPrefix(e, "https://"):
			secure++
		case !strings.HasPrefix(e, "http://"):
			return nil, fmt.Errorf("metadata.etcd.endpoints: %q does not begin with http:// or https://", e)
		}
	}
	if secure != 0 && secure != len(x.Endpoints) {
		return nil, errors.New("metadata.etcd.endpoints: http:// and https:// are mixed")
	}
	var err error
	x.TLS, err = c.etcdTLS(secure > 0)
	return x, err
}

func (c *Config) etcdTLS(secure bool) (*tls.Config, error) {
	ca, cert, key := c.String("metadata.etcd.tls.ca"), c.String("metadata.etcd.tls.cert"), c.String("metadata.etcd.tls.key")
	switch {
	case !secure && ca+cert+key != "":
		return nil, errors.New("metadata.etcd.tls: has no meaning with http:// in metadata.etcd.endpoints")
	case !secure:
		return nil, nil
	case (cert == "") != (key == ""):
		return nil, errors.New("metadata.etcd.tls.cert and metadata.etcd.tls.key: one is set without the other")
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("metadata.etcd.tls.ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("metadata.etcd.tls.ca: %s holds no certificate in PEM form", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("metadata.etcd.tls.cert: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// checkQuorum finds faults of what the keys of the controllers say together.
func (c *Config) checkQuorum() error {
	o := controller.Options{Dir: "metadata"} // nothing is opened
	if err := c.Quorum(&o); err != nil {
		return err
	}
	o.EnsureDefaults()
	return o.Validate()
}
