package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func load(t *testing.T, file string, overrides ...string) (*Config, error) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "server.properties")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(path, overrides)
}

// Every bad value is refused with a text that names the key; all of them are
// named at once.
func TestFaultsNameTheKey(t *testing.T) {
	for _, bad := range []string{
		"node.id=one", "node.id=-1", "num.partitions=0", "durability=maybe", "auto.create.topics.enable=yes",
		"listeners=9092", "listeners=PLAINTEXT://h:99999", "listeners=KERBEROS://h:1", "log.dirs=a,./a", "log.dirs=,",
		"log.cleaner.min.cleanable.ratio=1.5", "log.cleaner.min.cleanable.ratio=NaN", "log.cleaner.io.max.bytes.per.second=0",
		"log.cleaner.min.compaction.lag.ms=9223372036854775808",
		"metadata.etcd.endpoints=h:2379", "metadata.etcd.prefix=a", "cluster.secret=short", "controller.quorum.voters=1@h:1,2@h:2", "controller.quorum.voters=x@h:1", "controller.quorum.bootstrap.servers=h", "min.insync.replica=2", "controller.quorum.voters=2@h:1",
		"advertised.listeners=OTHER://h:1", "log.retention.hours=x",
	} {
		_, err := load(t, "", bad)
		key, _, _ := strings.Cut(bad, "=")
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v does not name the key", bad, err)
		}
	}
	if _, err := load(t, "", "log.cleaner.dedupe.buffer.size=2000000", "log.cleaner.threads=2"); err == nil {
		t.Error("too little memory for the cleaner's threads was taken")
	}
	if _, err := load(t, "", "log.cleaner.min.compaction.lag.ms=2", "log.cleaner.max.compaction.lag.ms=1"); err == nil {
		t.Error("crossed compaction lags were taken")
	}
	_, err := load(t, "num.partitions=0\nnot.a.key=1\n", "node.id=x")
	for _, want := range []string{"num.partitions", "not.a.key", "node.id", "server.properties"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults %v do not name %s", err, want)
		}
	}
}

// A file of Apache Kafka is taken as it is: aliases, its controller listener,
// and keys of the Java process; an override wins over the file.
func TestKafkaFile(t *testing.T) {
	c, err := load(t, `
process.roles=broker,controller
node.id=7
controller.quorum.voters=7@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners=PLAINTEXT://kafka.example:19092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
log.dirs=/tmp/kraft ${not.expanded}
log.retention.hours=168
`, "num.partitions=4", "num.partitions=6")
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Listeners()
	if err != nil || len(l) != 1 || l[0].Address != ":9092" || l[0].AdvertisedHost != "kafka.example" || l[0].AdvertisedPort != 19092 {
		t.Fatalf("listeners %+v, %v", l, err)
	}
	if c.Int("log.retention.ms") != 168*3600*1000 || c.Int("num.partitions") != 6 || c.Int("node.id") != 7 {
		t.Error("alias, override or file value was lost")
	}
	if got := c.String("log.dirs"); got != "/tmp/kraft ${not.expanded}" {
		t.Errorf("log.dirs %q was expanded", got)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "num.network.threads") {
		t.Errorf("warnings %q", c.Warnings)
	}
}

// Log directories are a list; the first holds the metadata unless another is named.
func TestLogDirs(t *testing.T) {
	c, err := load(t, "", "log.dirs=/a, /b/,")
	if err != nil || !slices.Equal(c.LogDirs(), []string{"/a", "/b"}) || c.MetadataDir() != "/a" {
		t.Fatalf("%v %v", c, err)
	}
	if c, err = load(t, "", "log.dirs=/a,/b", "metadata.log.dir=/c"); err != nil || c.MetadataDir() != "/c" {
		t.Fatalf("%v %v", c, err)
	}
}

// Plugins have keys whose middle the operator makes up; one that is used must
// be there, and one that is there must be used.
func TestPlugins(t *testing.T) {
	c, err := load(t, "", "plugin.hold.path=/p", "plugin.hold.sha256=00", "plugin.hold.args=-topics orders.*",
		"plugin.truncation.policy=hold", "plugin.transport.my.mirror=hold")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Plugins()
	if len(p) != 1 || p[0].Path != "/p" || p[0].SHA256 != "00" || len(p[0].Args) != 2 || c.Transports()["my.mirror"] != "hold" {
		t.Fatalf("%+v, %v", p, c.Transports())
	}
	for _, bad := range []string{"plugin.truncation.policy=gone", "plugin.idle.path=/p", "plugin.UPPER.path=/p", "plugin.x.color=red", "plugin.transport.=x"} {
		if _, err := load(t, "", bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// Every default passes its own check, and the reference names every key.
func TestDefaultsAreValid(t *testing.T) {
	c, err := load(t, "")
	if err != nil {
		t.Fatal(err)
	}
	var ref strings.Builder
	PrintReference(&ref)
	for _, e := range c.Entries() {
		if err := find(e.Name).check(e.Default); err != nil {
			t.Errorf("default: %v", err)
		}
		if !strings.Contains(ref.String(), "#"+e.Name+"=") {
			t.Errorf("reference lacks %s", e.Name)
		}
	}
}

// A trust store behind a mechanism is for the keys of tokens: nothing else asks
// anybody.
func TestTrustStoreOfMechanism(t *testing.T) {
	const key = "listener.name.plaintext.%s.ssl.truststore.location=/x"
	c, err := load(t, "", fmt.Sprintf(key, "oauthbearer"))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := c.Listeners(); err != nil || l[0].Security["oauthbearer.ssl.truststore.location"] != "/x" || l[0].Security["ssl.truststore.location"] != "" {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := load(t, "", fmt.Sprintf(key, "plain")); err == nil || !strings.Contains(err.Error(), "OAUTHBEARER") {
		t.Errorf("behind another mechanism: %v", err)
	}
}
