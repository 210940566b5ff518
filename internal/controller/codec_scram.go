package controller

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// scramRecord holds the two keys sealed: who has the files of the store could
// otherwise guess passwords, or pass for this cluster.
type scramRecord struct {
	V          int    `json:"v"`
	Iterations int32  `json:"iterations"`
	Salt       []byte `json:"salt"`
	Keys       string `json:"keys"`
}

func scramKey(user string, m metadata.ScramMechanism) string {
	return dirScram + m.String() + "/" + url.PathEscape(user)
}

func parseScramKey(name string) (user string, m metadata.ScramMechanism, err error) {
	mechanism, escaped, _ := strings.Cut(name, "/")
	m = metadata.ParseScramMechanism(mechanism)
	if user, err = url.PathUnescape(escaped); err == nil && (m == 0 || user == "") {
		err = fmt.Errorf("%w: SCRAM mechanism or user", errBadRecord)
	}
	return user, m, err
}

func (c codec) encodeScram(cred *metadata.ScramCredential) (write, error) {
	key := scramKey(cred.User, cred.Mechanism)
	keys, err := c.seal.seal(string(cred.StoredKey)+string(cred.ServerKey), []byte(key))
	if err != nil {
		return write{}, fmt.Errorf("seal SCRAM credential of %q: %w", cred.User, err)
	}
	return putJSON(key, scramRecord{1, cred.Iterations, cred.Salt, keys})
}

// decodeScram: keys that do not open leave a user who cannot log in, as a mirror's
// secret that does not open leaves a mirror that cannot. A user is set anew, or
// comes back with the key file.
func (c codec) decodeScram(name string, value []byte) (Change, error) {
	user, m, err := parseScramKey(name)
	if err != nil || value == nil {
		return deleteScram{user, m}, err
	}
	var r scramRecord
	if err := getJSON(value, &r); err != nil {
		return nil, err
	}
	cred := &metadata.ScramCredential{User: user, Mechanism: m, Iterations: r.Iterations, Salt: r.Salt}
	keys, err := c.seal.unseal(r.Keys, []byte(dirScram+name))
	if err == nil && len(keys) != 2*m.Size() {
		err = errBadRecord
	}
	if err != nil {
		c.seal.logger.Error("a stored SCRAM credential does not open, so this user cannot log in; set it anew or bring the key file back",
			"user", user, "mechanism", m.String(), "key_file", c.seal.file, "error", err)
		return putScram{cred}, nil
	}
	cred.StoredKey, cred.ServerKey = []byte(keys[:m.Size()]), []byte(keys[m.Size():])
	return putScram{cred}, nil
}
