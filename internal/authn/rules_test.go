package authn

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"
)

// TestNamesOfCertificates holds our form of a subject against what Java's
// X500Principal.getName prints for the same files.
func TestNamesOfCertificates(t *testing.T) {
	for file, want := range map[string]string{
		"name1.pem": `CN=\ \ two  blanks\ ,OU=a\=b,O=A,L=Mün\"chen,ST=By\, x,C=DE`,
		"name2.pem": `CN=alice,1.2.840.113549.1.9.1=#16056140622e63,2.5.4.5=#13023132,UID=u1,DC=example,DC=org`,
		"name3.pem": `CN=x\#y,OU=\#hash,O=A\+B \<c\>\;d`,
		"name4.pem": `CN=back\\slash,2.5.4.4=#0c0173,2.5.4.42=#0c0167,2.5.4.12=#0c024472,STREET=road 1,2.5.4.17=#0c023830`,
	} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Rules(nil).Name(cert); err != nil || got != want {
			t.Errorf("%s: %s, %v\nwant        %s", file, got, err, want)
		}
	}
}

func TestRules(t *testing.T) {
	const subject = "CN=Duke,OU=ServiceUsers,O=Org,C=US"
	for _, tt := range []struct{ rules, subject, want string }{
		{"", subject, subject},
		{"DEFAULT", subject, subject},
		{"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", subject, "Duke"},
		{"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/L", subject, "duke@$2"},
		{"RULE:^CN=([^,]*),OU=([^,]*),.*$/$2-$1/U", subject, "SERVICEUSERS-DUKE"},
		{"RULE:^CN=(.*?),OU=Admins.*$/admin/,RULE:^cn=.*$/x/, DEFAULT", subject, subject},
		{"RULE:^CN=(.*?),OU=Admins.*$/admin/", subject, "error"},
		// The whole subject has to match, as in Java.
		{`RULE:CN=Duke/x/,RULE:.*O=(\w+).*/$1/`, subject, "Org"},
		{`RULE:^CN=a\/b$/c\/d/`, "CN=a/b", "c/d"},
		{`RULE:^(.*)$/$10/`, "x", "x0"},
		{`RULE:^.*$/\$0/`, "x", "$0"},
		{"RULE:^CN=(.*)$/$1/", "CN=", "error"},
	} {
		rules, err := ParseRules(tt.rules)
		if err != nil {
			t.Errorf("%s: %v", tt.rules, err)
			continue
		}
		got, err := rules.apply(tt.subject)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%s makes %q of %q, want %q", tt.rules, got, tt.subject, tt.want)
		}
	}
	for _, bad := range []string{"RULE:a", "RULE:(/x/", "default", "RULE:a/b/X", "DEFAULT;DEFAULT", "RULE:a/b"} {
		if rules, err := ParseRules(bad); err == nil {
			t.Errorf("%s was read as %v", bad, rules)
		}
	}
}
