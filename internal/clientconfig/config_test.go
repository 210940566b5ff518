package clientconfig

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const plainLogin = plainModule + ` required username="alice" password="s3cr3t-pw";`

func TestBootstrap(t *testing.T) {
	for _, c := range []struct{ in, want, fault string }{
		{":9094", "localhost:9094", ""},
		{"a:1, b:2,,a:1", "a:1 b:2", ""},
		{"SASL_SSL://broker.example:9093", "broker.example:9093", ""},
		{"[::1]:9092", "[::1]:9092", ""},
		{"", "", ""},
		{"a", "", "a"},
		{"a:0", "", "a:0"},
		{"a:65536", "", "a:65536"},
		{"http://a:80/x", "", "http://a:80/x"},
		{"a b:1", "", "a b:1"},
	} {
		got, err := ParseBootstrap(c.in)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%q: error %v does not name %q", c.in, err, c.fault)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%q: %v, %v", c.in, got, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, err := Parse(map[string]string{"bootstrap.servers": ":9092"})
	if err != nil {
		t.Fatal(err)
	}
	if c.TLS != nil || c.SASL != nil || c.Protocol != Plaintext || c.RequestTimeout != 30*time.Second ||
		c.DialTimeout != 10*time.Second || len(c.Warnings) != 0 {
		t.Errorf("%+v", c)
	}
}

// Each fault names its key; none shows a password.
func TestFaultsNameTheKey(t *testing.T) {
	sasl := func(kv ...string) map[string]string {
		m := map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": plainLogin}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	ssl := func(kv ...string) map[string]string {
		return sasl(append([]string{"security.protocol", "SASL_SSL"}, kv...)...)
	}
	for _, c := range []struct {
		props map[string]string
		key   string
		text  string
	}{
		{map[string]string{"securty.protocol": "SSL"}, "securty.protocol", "no such"},
		{map[string]string{"security.protocol": "TLS"}, "security.protocol", "none of"},
		{map[string]string{"bootstrap.servers": "x"}, "bootstrap.servers", "host:port"},
		{map[string]string{"request.timeout.ms": "1s"}, "request.timeout.ms", "milliseconds"},
		{map[string]string{"security.protocol": "SASL_SSL"}, "sasl.jaas.config", "required"},
		{sasl("sasl.mechanism", "GSSAPI"), "sasl.mechanism", "not supported"},
		{sasl("sasl.mechanism", "PLAN"), "sasl.mechanism", "none of"},
		{sasl("sasl.mechanism", "SCRAM-SHA-256"), "sasl.jaas.config", "ScramLoginModule"},
		{sasl("sasl.jaas.config", plainModule+` required username="alice" password="s3cr3t-pw"`), "sasl.jaas.config", "semicolon"},
		{sasl("sasl.jaas.config", plainModule+` required password="s3cr3t-pw";`), "sasl.jaas.config", "username"},
		{sasl("sasl.jaas.config", plainModule+` required username="alice";`), "sasl.jaas.config", "password"},
		{sasl("sasl.jaas.config", plainModule+` required username=alice password=s3cr3t-pw x;`), "sasl.jaas.config", "name=value"},
		{ssl("ssl.protocol", "SSLv3"), "ssl.protocol", "SSLv3"},
		{ssl("ssl.enabled.protocols", "TLSv1.2,TLSv9"), "ssl.enabled.protocols", "TLSv9"},
		{ssl("ssl.cipher.suites", "TLS_FOO"), "ssl.cipher.suites", "TLS_FOO"},
		{ssl("ssl.endpoint.identification.algorithm", "ldap"), "ssl.endpoint.identification.algorithm", "ldap"},
		{ssl("ssl.truststore.location", "testdata/none"), "ssl.truststore.location", "testdata/none"},
		{ssl("ssl.truststore.location", "testdata/truststore.jks", "ssl.truststore.password", "s3cr3t-pw"), "ssl.truststore.location", "keytool -importkeystore"},
		{ssl("ssl.truststore.location", "testdata/truststore.p12", "ssl.truststore.password", "s3cr3t-pw"), "ssl.truststore.password", "does not open"},
		{ssl("ssl.truststore.location", "testdata/truststore.p12"), "ssl.truststore.password", "is missing"},
		{ssl("ssl.truststore.location", "testdata/unmarked.p12", "ssl.truststore.password", "changeit"), "ssl.truststore.location", "trust mark"},
		{ssl("ssl.truststore.location", "testdata/README.md"), "ssl.truststore.location", "neither PEM nor PKCS12"},
		{ssl("ssl.truststore.location", "testdata/cert.pem", "ssl.truststore.type", "PKCS12"), "ssl.truststore.type", "PEM"},
		{ssl("ssl.truststore.certificates", "s3cr3t-pw"), "ssl.truststore.certificates", "no certificate"},
		{ssl("ssl.keystore.location", "testdata/keystore.p12", "ssl.keystore.password", "s3cr3t-pw"), "ssl.keystore.password", "does not open"},
		{ssl("ssl.keystore.location", "testdata/keystore.p12", "ssl.keystore.password", "changeit", "ssl.key.password", "s3cr3t-pw"), "ssl.key.password", "one password"},
		{ssl("ssl.keystore.key", file(t, "key-plain.pem")), "ssl.keystore.certificate.chain", "required"},
		{ssl("ssl.keystore.certificate.chain", file(t, "cert.pem")), "ssl.keystore.key", "required"},
		{ssl("ssl.keystore.certificate.chain", file(t, "cert.pem"), "ssl.keystore.key", file(t, "key-pbes2.pem")), "ssl.key.password", "not set"},
		{ssl("ssl.keystore.certificate.chain", file(t, "cert.pem"), "ssl.keystore.key", file(t, "key-pbes2.pem"), "ssl.key.password", "s3cr3t-pw"), "ssl.key.password", "another password"},
		{ssl("ssl.keystore.certificate.chain", file(t, "cert.pem"), "ssl.keystore.key", file(t, "key-old.pem"), "ssl.key.password", "secret-key"), "ssl.keystore.key", "openssl pkcs8"},
	} {
		_, err := Parse(c.props)
		var fault *KeyError
		if !errors.As(err, &fault) || fault.Key != c.key || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v\n  got  %v\n  want %s: …%s…", c.props, err, c.key, c.text)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "alice") || strings.Contains(err.Error(), "secret-key")) {
			t.Errorf("error shows a secret: %v", err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("error has more than one line: %v", err)
		}
	}
}

func TestWarnings(t *testing.T) {
	c, err := Parse(map[string]string{
		"ssl.provider": "X", "sasl.login.class": "Y", "acks": "all", "topics.include": ".*", "zz": "",
		"ssl.truststore.location": "/nowhere", "sasl.jaas.config": plainLogin,
	}, AllowUnknown())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Unknown, []string{"topics.include", "zz"}) {
		t.Errorf("unknown %q", c.Unknown)
	}
	all := strings.Join(c.Warnings, "\n")
	for _, want := range []string{"ssl.provider", "sasl.login.class", "ssl.* keys", "sasl.* keys"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning about %s in %q", want, all)
		}
	}
}

func TestMechanisms(t *testing.T) {
	scramLogin := scramModule + ` required username="alice" password="x" tokenauth=true;`
	for mechanism, login := range map[string]string{"": plainLogin, "PLAIN": plainLogin, "scram-sha-256": scramLogin, "SCRAM-SHA-512": scramLogin} {
		c, err := Parse(map[string]string{"security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism, "sasl.jaas.config": login})
		if err != nil {
			t.Fatalf("%s: %v", mechanism, err)
		}
		want := strings.ToUpper(mechanism)
		if want == "" {
			want = "PLAIN"
		}
		if c.SASL.Name() != want {
			t.Errorf("%s: mechanism %s", mechanism, c.SASL.Name())
		}
	}
}

func TestTLSVersions(t *testing.T) {
	const v12, v13 = tls.VersionTLS12, tls.VersionTLS13
	for _, c := range []struct {
		protocol, enabled, suites string
		min, max                  uint16
	}{
		{"", "", "", v12, v13},
		{"TLSv1.3", "", "", v12, v13},
		{"TLSv1.2", "", "", v12, v12},
		{"TLSv1.2", "TLSv1.3, TLSv1.2", "", v12, v13},
		{"", "TLSv1.3", "", v13, v13},
		{"TLSv1.1", "", "", tls.VersionTLS11, tls.VersionTLS11},
		{"", "", "TLS_AES_128_GCM_SHA256", v13, v13},
		{"", "", "TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", v12, v13},
	} {
		got, err := Parse(map[string]string{"security.protocol": "SSL", "ssl.protocol": c.protocol, "ssl.enabled.protocols": c.enabled, "ssl.cipher.suites": c.suites})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if got.TLS.MinVersion != c.min || got.TLS.MaxVersion != c.max {
			t.Errorf("%+v: %x to %x", c, got.TLS.MinVersion, got.TLS.MaxVersion)
		}
	}
}

func TestLoadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "client.properties")
	text := "# comment\nsecurity.protocol = SSL\nssl.key.password=${not.expanded}\nbootstrap.servers=a:1,\\\n  b:2\nsasl.jaas.config=x \\\"y\\\";\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"security.protocol": "SSL", "ssl.key.password": "${not.expanded}", "bootstrap.servers": "a:1,b:2", "sasl.jaas.config": `x "y";`,
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	if _, err := LoadFile(path + "x"); err == nil || !strings.Contains(err.Error(), path+"x") {
		t.Errorf("missing file: %v", err)
	}
}

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
