package clientconfig

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestJAAS(t *testing.T) {
	for _, c := range []struct{ in, want, fault string }{
		{`M required a="1" b='2' c=3;`, "a=1 b=2 c=3", ""},
		{`M REQUIRED ;`, "", ""},
		{"M\n  required\n a=\"x y\" ;\n", "a=x y", ""},
		{`M required a="q\"q\\\t\101\x" b='it"s';`, "a=q\"q\\\tAx b=it\"s", ""},
		{`M required /* c */ a="//no" // end` + "\n;", "a=//no", ""},
		{`M required a=;`, "", "option 1 has no value"},
		{`M required a;`, "", "option 1 is not name=value"},
		{`M required =a;`, "", "equals"},
		{`M required a=1 a=2;`, "", "option 2 repeats"},
		{`M a=1;`, "", "control flag"},
		{`M required a=1`, "", "semicolon"},
		{`M required a="1`, "", "closing quote"},
		{"M required a=\"1\n\";", "", "end on its line"},
		{`M required a=1; N required b=2;`, "", "more than one"},
		{`"M" required;`, "", "login module"},
		{``, "", "login module"},
		{`M required /* a=1;`, "", "comment"},
	} {
		l, err := parseJAAS(c.in)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%q: error %v, want …%s…", c.in, err, c.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		var got []string
		for _, k := range []string{"a", "b", "c"} {
			if v, ok := l.options[k]; ok {
				got = append(got, k+"="+v.Reveal())
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

// However the text is damaged, no error shows a part of the password.
func TestJAASErrorsHideSecrets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := plainModule + ` required username="zorro" password="XYZZY-PLUGH" other=XYZZY-PLUGH;`
		for range rapid.IntRange(1, 4).Draw(t, "damages") {
			i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				text = text[:i] + text[i+1:]
			case 1:
				text = text[:i] + rapid.SampledFrom([]string{`"`, `'`, `;`, `=`, ` `, `\`, "\n"}).Draw(t, "put") + text[i:]
			default:
				text = text[:i]
			}
			if text == "" {
				break
			}
		}
		_, err := Parse(map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": text})
		if err != nil && (strings.Contains(err.Error(), "XYZZY") || strings.Contains(err.Error(), "PLUGH") || strings.Contains(err.Error(), "zorro")) {
			t.Fatalf("%q shows a secret: %v", text, err)
		}
	})
}

func TestSecretPrintsNothing(t *testing.T) {
	s := Secret("topsecret")
	js, _ := json.Marshal(map[string]any{"a": s, "b": &s})
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s)
	for _, got := range []string{
		fmt.Sprint(s), fmt.Sprintf("%s %q %v %+v %#v %x %d", s, s, s, s, s, s, s), fmt.Sprintf("%v %#v", struct{ S Secret }{s}, []Secret{s}),
		string(js), log.String(),
	} {
		if strings.Contains(got, "topsecret") || strings.Contains(got, fmt.Sprintf("%x", "topsecret")) {
			t.Errorf("printed: %s", got)
		}
	}
	if s.Reveal() != "topsecret" {
		t.Error("Reveal lost it")
	}
}

func FuzzJAAS(f *testing.F) {
	f.Add(plainLogin)
	f.Add(`M required a="\7\77\777" b='x';`)
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := parseJAAS(text); err == nil && l.module == "" {
			t.Errorf("%q: no module", text)
		}
	})
}
