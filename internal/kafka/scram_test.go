package kafka

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// upsertion is a change as a client sends it: hashed there.
func upsertion(t testing.TB, user string, m metadata.ScramMechanism, iterations int32, password string) kmsg.AlterUserSCRAMCredentialsRequestUpsertion {
	t.Helper()
	u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	u.Name, u.Mechanism, u.Iterations, u.Salt = user, int8(m), iterations, []byte("salt of "+user)
	salted, err := m.SaltedPassword(password, u.Salt, int(iterations))
	if err != nil {
		t.Fatal(err)
	}
	u.SaltedPassword = salted
	return u
}

// TestAlterAndDescribeScram goes through what an administrator may ask, right and
// wrong, and what is told of it.
func TestAlterAndDescribeScram(t *testing.T) {
	c := dial(t, testBroker(t).addr)
	alice, bob, long := uniqueName(t)+"/alice", uniqueName(t)+"-bob", strings.Repeat("x", 2000)
	alter := func(want map[string]int16, deletions []kmsg.AlterUserSCRAMCredentialsRequestDeletion, upsertions ...kmsg.AlterUserSCRAMCredentialsRequestUpsertion) {
		t.Helper()
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Deletions, req.Upsertions = deletions, upsertions
		resp := ask[*kmsg.AlterUserSCRAMCredentialsResponse](t, c, req)
		if len(resp.Results) != len(want) {
			t.Fatalf("%d results: %+v", len(resp.Results), resp.Results)
		}
		for _, r := range resp.Results {
			if r.ErrorCode != want[r.User] || (r.ErrorCode != 0) != (r.ErrorMessage != nil) {
				t.Errorf("%.20s: code %d, want %d", r.User, r.ErrorCode, want[r.User])
			}
		}
	}
	deletion := func(user string, m metadata.ScramMechanism) []kmsg.AlterUserSCRAMCredentialsRequestDeletion {
		return []kmsg.AlterUserSCRAMCredentialsRequestDeletion{{Name: user, Mechanism: int8(m)}}
	}
	short := upsertion(t, bob, metadata.ScramSHA512, 4096, "p")
	short.SaltedPassword = short.SaltedPassword[:32]
	twice := upsertion(t, bob, metadata.ScramSHA256, 4096, "p")

	alter(map[string]int16{alice: 0, bob: 0}, nil, upsertion(t, alice, metadata.ScramSHA256, 4096, "p"), upsertion(t, alice, metadata.ScramSHA512, 8192, "p"), twice)
	alter(map[string]int16{bob: kerr.DuplicateResource.Code, alice: 0}, deletion(bob, metadata.ScramSHA256), twice, upsertion(t, alice, metadata.ScramSHA256, 5000, "q"))
	alter(map[string]int16{bob: kerr.UnsupportedSaslMechanism.Code}, deletion(bob, 3))
	alter(map[string]int16{bob: kerr.ResourceNotFound.Code}, deletion(bob, metadata.ScramSHA512))
	alter(map[string]int16{bob: kerr.UnacceptableCredential.Code}, nil, short)
	alter(map[string]int16{"": kerr.UnacceptableCredential.Code, long: kerr.UnacceptableCredential.Code}, nil,
		upsertion(t, "", metadata.ScramSHA256, 4096, "p"), upsertion(t, long, metadata.ScramSHA256, 4096, "p"))
	alter(map[string]int16{bob: kerr.UnacceptableCredential.Code}, nil, upsertion(t, bob, metadata.ScramSHA512, 4095, "p"))

	describe := func(users ...string) map[string]kmsg.DescribeUserSCRAMCredentialsResponseResult {
		t.Helper()
		req := kmsg.NewPtrDescribeUserSCRAMCredentialsRequest()
		for _, u := range users {
			req.Users = append(req.Users, kmsg.DescribeUserSCRAMCredentialsRequestUser{Name: u})
		}
		out := map[string]kmsg.DescribeUserSCRAMCredentialsResponseResult{}
		for _, r := range ask[*kmsg.DescribeUserSCRAMCredentialsResponse](t, c, req).Results {
			if _, ok := out[r.User]; ok {
				t.Errorf("%s is answered twice", r.User)
			}
			out[r.User] = r
		}
		return out
	}
	for _, got := range []map[string]kmsg.DescribeUserSCRAMCredentialsResponseResult{describe(), describe(alice, bob)} {
		a, b := got[alice].CredentialInfos, got[bob].CredentialInfos
		if len(a) != 2 || a[0].Iterations != 5000 || a[1].Iterations != 8192 || len(b) != 1 || b[0].Mechanism != 1 {
			t.Errorf("alice %+v, bob %+v", a, b)
		}
	}
	got := describe(bob, "nobody", alice, bob)
	if len(got) != 3 || got["nobody"].ErrorCode != kerr.ResourceNotFound.Code || got[bob].ErrorCode != kerr.DuplicateResource.Code || got[bob].CredentialInfos != nil || got[alice].ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
	alter(map[string]int16{bob: 0}, deletion(bob, metadata.ScramSHA256))
	if got := describe(bob); got[bob].ErrorCode != kerr.ResourceNotFound.Code {
		t.Errorf("deleted, and still %+v", got)
	}
}
