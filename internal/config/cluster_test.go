package config

import (
	"strings"
	"testing"
)

// Faults of a process among others name the key.
func TestClusterFaults(t *testing.T) {
	for _, bad := range []string{
		"process.roles=observer", "process.roles=", "broker.heartbeat.interval.ms=3000", "broker.session.timeout.ms=500",
		"replica.fetch.wait.max.ms=30000", "replica.socket.timeout.ms=400", "num.replica.fetchers=0",
		"replica.selector.class=com.example.Mine", "controlled.shutdown.enable=yes",
		"inter.broker.listener.name=OTHER", "security.inter.broker.protocol=SSL", "sasl.mechanism.inter.broker.protocol=PLAIN",
		"ssl.endpoint.identification.algorithm=http",
	} {
		_, err := load(t, "", bad)
		key, _, _ := strings.Cut(bad, "=")
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v does not name the key", bad, err)
		}
	}
	if _, err := load(t, "", "process.roles=controller", "listeners=PLAINTEXT://:1"); err == nil || !strings.Contains(err.Error(), "process.roles") {
		t.Errorf("clients' listener of a controller: %v", err)
	}
}

func TestRoles(t *testing.T) {
	for roles, want := range map[string][2]bool{
		"broker": {true, false}, "controller": {false, true}, "broker,controller": {true, true}, "controller,broker": {true, true},
	} {
		listeners := "C://:9093"
		if want[0] {
			listeners += ",PLAINTEXT://:9092"
		}
		c, err := load(t, "", "process.roles="+roles, "cluster.secret=0123456789abcdef", "controller.quorum.bootstrap.servers=h:1",
			"controller.listener.names=C", "listeners="+listeners)
		if err != nil || [2]bool{c.IsBroker(), c.IsController()} != want {
			t.Errorf("%s: %v", roles, err)
			continue
		}
		if l, err := c.Listeners(); err != nil || (len(l) > 0) != want[0] {
			t.Errorf("%s: listeners %v, %v", roles, l, err)
		}
	}
}

// What brokers use among themselves, as Kafka's files name it.
func TestInterBroker(t *testing.T) {
	const listeners = "listeners=CLIENTS://:1,PRIVATE://:2\nlistener.security.protocol.map=CLIENTS:PLAINTEXT,PRIVATE:SASL_PLAINTEXT\n" +
		"sasl.enabled.mechanisms=PLAIN\nsasl.plaintext.passwords.allow=true\n" +
		"listener.name.private.plain.sasl.jaas.config=" + plainLogin + " required username=\"broker\" password=\"pw\" user_broker=\"pw\";\n"
	interBroker := func(text string) (*InterBroker, error) {
		c, err := load(t, text)
		if err != nil {
			return nil, err
		}
		l, err := c.Listeners()
		if err != nil {
			return nil, err
		}
		return c.InterBroker(l)
	}
	ib, err := interBroker(listeners)
	if err != nil || ib.Listener != "CLIENTS" || ib.Incomplete != nil || ib.Client["security.protocol"] != "PLAINTEXT" {
		t.Errorf("the first: %+v, %v", ib, err)
	}
	for _, by := range []string{"inter.broker.listener.name=PRIVATE\n", "security.inter.broker.protocol=SASL_PLAINTEXT\n"} {
		ib, err = interBroker(listeners + by + "sasl.mechanism.inter.broker.protocol=PLAIN\n")
		if err != nil || ib.Incomplete != nil || ib.Listener != "PRIVATE" || ib.Client["sasl.mechanism"] != "PLAIN" || !strings.Contains(ib.Client["sasl.jaas.config"], "broker") {
			t.Errorf("%s: %+v, %v", by, ib, err)
		}
		// One broker alone never connects to another; a process of several does.
		if ib, err = interBroker(listeners + by); err != nil || ib.Incomplete == nil {
			t.Errorf("%s without a mechanism: %+v, %v", by, ib, err)
		}
		if _, err = interBroker(listeners + by + "process.roles=broker\n"); err == nil || !strings.Contains(err.Error(), "sasl.mechanism.inter.broker.protocol") {
			t.Errorf("%s without a mechanism among others: %v", by, err)
		}
	}
	if _, err = interBroker(listeners + "security.inter.broker.protocol=PLAINTEXT\ninter.broker.listener.name=CLIENTS\n"); err == nil {
		t.Error("both keys were taken")
	}
	// A login module that only names users lets nobody in by itself.
	alone := strings.Replace(listeners, `username="broker" password="pw" `, "", 1)
	_, err = interBroker(alone + "inter.broker.listener.name=PRIVATE\nsasl.mechanism.inter.broker.protocol=PLAIN\nprocess.roles=broker\n")
	if err == nil || !strings.Contains(err.Error(), "username") || strings.Contains(err.Error(), `"pw"`) {
		t.Errorf("no user of its own: %v", err)
	}
}

const plainLogin = "org.apache.kafka.common.security.plain.PlainLoginModule"
