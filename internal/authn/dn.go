package authn

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"strings"
)

// distinguishedName is a certificate's subject in the form that Java calls
// RFC 2253 and Kafka's mapping rules and ACLs are written for: the last attribute
// first, and attributes without a keyword there as OID=#hex. Go's own form knows
// other keywords.
func distinguishedName(cert *x509.Certificate) (string, error) {
	var rdns []asn1.RawValue
	if rest, err := asn1.Unmarshal(cert.RawSubject, &rdns); err != nil || len(rest) > 0 {
		return "", fmt.Errorf("subject of the certificate: %v", err)
	}
	var out []string
	for i := len(rdns) - 1; i >= 0; i-- {
		var set []attribute
		if _, err := asn1.UnmarshalWithParams(rdns[i].FullBytes, &set, "set"); err != nil {
			return "", fmt.Errorf("subject of the certificate: %w", err)
		}
		var parts []string
		for _, a := range set {
			parts = append(parts, a.String())
		}
		out = append(out, strings.Join(parts, "+"))
	}
	return strings.Join(out, ","), nil
}

type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

var keywords = map[string]string{
	"2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET",
	"2.5.4.10": "O", "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}

func (a attribute) String() string {
	keyword := keywords[a.Type.String()]
	var text string
	switch a.Value.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, asn1.TagT61String:
		text = string(a.Value.Bytes)
	case asn1.TagBMPString, asn1.TagGeneralString:
		var v pkix.AttributeTypeAndValue
		if _, err := asn1.Unmarshal(a.Value.FullBytes, &v.Value); err != nil {
			keyword = ""
		}
		text, _ = v.Value.(string)
	default:
		keyword = ""
	}
	if keyword == "" {
		return a.Type.String() + "=#" + hex.EncodeToString(a.Value.FullBytes)
	}
	return keyword + "=" + escapeDN(text)
}

func escapeDN(s string) string {
	lead := len(s) - len(strings.TrimLeft(s, " "))
	trail := len(strings.TrimRight(s, " "))
	var b strings.Builder
	for i, r := range s {
		if strings.ContainsRune(`,=+<>#;"\`, r) || r == ' ' && (i < lead || i >= trail) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
