package authz

import "testing"

func TestParsePrincipal(t *testing.T) {
	for s, want := range map[string]Principal{
		"User:alice":      {"User", "alice"},
		"User:CN=a,O=b:c": {"User", "CN=a,O=b:c"},
		"User:*":          {"User", "*"},
		"User:":           {"User", ""},
		"Group:ops":       {"Group", "ops"},
		"User:ANONYMOUS":  Anonymous,
	} {
		if got, ok := ParsePrincipal(s); !ok || got != want || got.String() != s {
			t.Errorf("%q: %+v, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "alice", ":alice"} {
		if got, ok := ParsePrincipal(s); ok {
			t.Errorf("%q is taken for %+v", s, got)
		}
	}
}
