package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// secretTexts must not be found anywhere: passwords with the word canary in
// them, and pieces of private keys.
type secretTexts []string

// key adds a private key's text and answers it.
func (c *secretTexts) key(pemText []byte) string {
	_, rest := pem.Decode(pemText)
	block, _ := pem.Decode(rest)
	text := string(pem.EncodeToMemory(block))
	*c = append(*c, strings.Split(text, "\n")[1][:40], string(block.Bytes[8:40]))
	return text
}

// certificateOf is the certificate of what selfSigned makes.
func certificateOf(pemText []byte) string {
	block, _ := pem.Decode(pemText)
	return string(pem.EncodeToMemory(block))
}

// storesOf writes a certificate into PKCS12 stores with their passwords.
func storesOf(t *testing.T, dir string, cert tls.Certificate, keyPassword, trustPassword string) (keys, trust string) {
	t.Helper()
	write := func(name string, store []byte, err error) string {
		path := filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(path, store, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	store, err := pkcs12.Modern.Encode(cert.PrivateKey, cert.Leaf, nil, keyPassword)
	keys = write("keys.p12", store, err)
	store, err = pkcs12.Modern.EncodeTrustStore([]*x509.Certificate{cert.Leaf}, trustPassword)
	return keys, write("trust.p12", store, err)
}

// missing tells of each place in which one of the texts, or the word itself, is.
func (c secretTexts) missing(t *testing.T, places map[string]string) {
	t.Helper()
	for place, text := range places {
		for _, secret := range append(secretTexts{"canary"}, c...) {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s holds a secret: …%q…", place, text[max(i-40, 0):min(i+40, len(text))])
			}
		}
	}
}

// addFiles makes every file below a directory a place.
func addFiles(t *testing.T, places map[string]string, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		places[path] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSecretsOfStoresAndMirrors gives a server secrets in every key that takes one: of
// listeners, and of mirrors that log in at their source, that change, and that cannot be
// created. Then it looks for them in all that the server says and keeps.
//
// MIR-363.
func TestSecretsOfStoresAndMirrors(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	var secrets secretTexts
	serverPEM, serverCert, pool := selfSigned(t, "server")
	inlinePEM, _, _ := selfSigned(t, "inline")
	clientPEM, _, _ := selfSigned(t, "mirror")
	keyStore, trustStore := storesOf(t, dir, serverCert, "canary-keystore", "canary-truststore")
	secrets.key(serverPEM)
	oneLine := func(text string) string { return strings.ReplaceAll(text, "\n", " ") }
	cfg, err := config.Load("", []string{
		"listeners=STORES://127.0.0.1:0,INLINE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
		"listener.security.protocol.map=STORES:SSL,INLINE:SSL,PLAINTEXT:PLAINTEXT",
		"listener.name.stores.ssl.keystore.location=" + keyStore, "listener.name.stores.ssl.keystore.password=canary-keystore",
		"listener.name.stores.ssl.truststore.location=" + trustStore, "listener.name.stores.ssl.truststore.password=canary-truststore",
		"listener.name.stores.ssl.client.auth=requested",
		"listener.name.inline.ssl.keystore.key=" + oneLine(secrets.key(inlinePEM)),
		"listener.name.inline.ssl.keystore.certificate.chain=" + oneLine(certificateOf(inlinePEM)),
		"admin.listener=127.0.0.1:0", "admin.pprof.enable=true", "log.dirs=" + data, "log.dir.reserve.bytes=-1", "log.level=debug",
		"audit.log.path=" + filepath.Join(data, "audit.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var log, printed lockedBuffer
	cfg.Print(&printed)
	b, err := startBroker(t.Context(), cfg, new(slog.LevelVar), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := b.stop(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	for i := range 2 {
		c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.endpoints[i].Port), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatalf("listener %d: %v", i, err)
		}
		c.Close()
	}

	source, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("elsewhere"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "mirror", "canary-source"),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{serverCert}, ClientCAs: pool}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	address := fmt.Sprintf("127.0.0.1:%d", b.endpoints[2].Port)
	client, err := new(wire.Dialer).Dial(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	places := map[string]string{}
	create := func(name, password string, more map[string]string) string {
		t.Helper()
		req := &wire.CreateClusterMirrorRequest{MirrorName: name}
		add := func(key, value string) { req.Config = append(req.Config, wire.MirrorConfig{Name: key, Value: &value}) }
		add("bootstrap.servers", source.ListenAddrs()[0])
		add("security.protocol", "SASL_SSL")
		add("sasl.mechanism", "PLAIN")
		add("sasl.jaas.config", `org.apache.kafka.common.security.plain.PlainLoginModule required username="mirror" password="`+password+`";`)
		for key, value := range more {
			add(key, value)
		}
		resp, err := client.RequestVersion(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%+v", resp)
		if message := resp.(*wire.CreateClusterMirrorResponse).ErrorMessage; message != nil {
			text += *message
		}
		places["creation of "+name] = text
		return text
	}
	stores := map[string]string{
		"ssl.keystore.location": keyStore, "ssl.keystore.password": "canary-keystore",
		"ssl.truststore.location": trustStore, "ssl.truststore.password": "canary-truststore",
	}
	for name, more := range map[string]map[string]string{
		"stores": stores,
		"inline": {
			"ssl.keystore.type": "PEM", "ssl.keystore.key": secrets.key(clientPEM), "ssl.keystore.certificate.chain": certificateOf(clientPEM),
			"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificateOf(serverPEM),
		},
	} {
		if text := create(name, "canary-source", more); !strings.Contains(text, "ErrorCode:0") {
			t.Fatalf("%s: %s", name, text)
		}
	}
	for name, more := range map[string]map[string]string{
		"wrong": {"ssl.truststore.location": trustStore, "ssl.truststore.password": "canary-wrong"},
		"key":   {"ssl.truststore.location": trustStore, "ssl.truststore.password": "canary-truststore", "ssl.keystore.key": "canary", "ssl.keystore.certificate.chain": "canary"},
	} {
		if text := create(name, "canary-source", more); strings.Contains(text, "ErrorCode:0") {
			t.Errorf("%s was created: %s", name, text)
		}
	}
	if text := create("login", "canary-of-nobody", stores); strings.Contains(text, "ErrorCode:0") {
		t.Errorf("a wrong password was taken: %s", text)
	}

	const mirrorResource = 64
	alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
	alter.SetVersion(1)
	changed := `org.apache.kafka.common.security.plain.PlainLoginModule required username="mirror" password="canary-changed";`
	alter.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: mirrorResource, ResourceName: "stores",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "sasl.jaas.config", Value: &changed}}}}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.SetVersion(4)
	describe.IncludeSynonyms, describe.IncludeDocumentation = true, true
	for _, name := range []string{"stores", "inline"} {
		describe.Resources = append(describe.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: mirrorResource, ResourceName: name})
	}
	describe.Resources = append(describe.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: "1"})
	for _, req := range []kmsg.Request{describe, alter, describe, &wire.DescribeClusterMirrorsRequest{MirrorNames: []string{"stores", "inline"}}, &wire.ListClusterMirrorsRequest{}} {
		resp, err := client.RequestVersion(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if alter, ok := resp.(*kmsg.IncrementalAlterConfigsResponse); ok && alter.Resources[0].ErrorCode != 0 {
			t.Errorf("alter: %s", *alter.Resources[0].ErrorMessage)
		}
		places[fmt.Sprintf("%T %d", resp, len(places))] = string(resp.AppendTo(nil))
	}
	admin, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	configs, err := kadm.NewClient(admin).DescribeBrokerConfigs(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	places["DescribeConfigs"] = describeAll(configs)

	for _, path := range []string{"/metrics", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1"} {
		resp, err := http.Get("http://" + b.adminAddr + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, resp.Status, err)
		}
		places[path] = string(text)
	}
	stop()
	places["log"], places["printed configuration"] = log.String(), printed.String()
	before := len(places)
	addFiles(t, places, data)
	stored := false
	for place, text := range places {
		stored = stored || strings.HasPrefix(place, data) && strings.Contains(text, source.ListenAddrs()[0])
	}
	if len(places) < before+5 || !stored {
		t.Errorf("the mirrors were not found among %d files", len(places)-before)
	}
	secrets.missing(t, places)
}
