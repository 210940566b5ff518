package config

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// Where a controller listens and what the others call that.
func TestQuorum(t *testing.T) {
	const secret = "cluster.secret=0123456789abcdef\n"
	for _, test := range []struct{ text, want string }{
		{"", " none"},
		{"controller.quorum.voters=1@h1:9093", "h1:9093 h1:9093 1@h1:9093"},
		{secret + "node.id=2\ncontroller.quorum.voters=1@h1:9093,2@h2:9093,3@h3:9093\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER",
			":9093 h2:9093 1@h1:9093,2@h2:9093,3@h3:9093"},
		// As Kafka's own file for a single node.
		{"listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.quorum.bootstrap.servers=localhost:9093\ncontroller.listener.names=CONTROLLER\n" +
			"advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
			":9093 localhost:9093 localhost:9093"},
		{secret + "process.roles=broker\nnode.id=4\ncontroller.quorum.bootstrap.servers=h1:9093, h2:9093", " broker h1:9093,h2:9093"},
		{secret + "metadata.etcd.endpoints=https://e1:2379,https://e2:2379\nmetadata.etcd.prefix=p/\nlisteners=PLAINTEXT://:9092,C://h1:9093\ncontroller.listener.names=C", "h1:9093 h1:9093 etcd of 2"},
	} {
		c, err := load(t, test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		var o controller.Options
		if err := c.Quorum(&o); err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		got := o.Listen + " " + o.Advertised
		switch {
		case o.BrokerOnly:
			got = " broker"
		case o.External != nil:
			got += fmt.Sprint(" etcd of ", len(o.External.Endpoints))
		case o.Listen == "":
			got = " none"
		}
		for i, v := range o.Voters {
			got += []string{" ", ","}[min(i, 1)] + v.String()
		}
		for i, b := range o.Bootstrap {
			got += []string{" ", ","}[min(i, 1)] + b
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.text, got, test.want)
		}
	}
}
