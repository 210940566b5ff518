package controller

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// An ACL is its own key, because it has no identity but its content:
//
//	lockstep/acl/<resource type>/<pattern>/<operation>/<permission>/<name>/<principal>/<host>
//
// The four numbers are Kafka's, in decimal; the texts are in unpadded base64url,
// because names may hold slashes. The value is the record's version, and behind it for
// an ACL that mirrors have copied, which ones: JSON, a list of [metadata.ACLSource].
const dirACL = keyRoot + "acl/"

func aclKey(a metadata.ACL) string {
	text := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf("%s%d/%d/%d/%d/%s/%s/%s", dirACL, int8(a.ResourceType), int8(a.Pattern), int8(a.Operation), int8(a.Permission),
		text([]byte(a.ResourceName)), text([]byte(a.Principal)), text([]byte(a.Host)))
}

func decodeACL(key string, value []byte) (Change, error) {
	a, err := parseACLKey(key)
	if err == nil {
		err = checkACL(a)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBadRecord, err)
	case value == nil:
		return deleteACL{a}, nil
	case len(value) == 0 || value[0] != recordVersion:
		return nil, fmt.Errorf("%w: version %q, this binary reads %d", errBadRecord, value, recordVersion)
	}
	put := putACL{ACL: a}
	if text := value[1:]; len(text) > 0 {
		if err := json.Unmarshal(text, &put.Sources); err != nil {
			return nil, fmt.Errorf("%w: %w", errBadRecord, err)
		}
	}
	return put, nil
}

func encodeACL(put putACL) (write, error) {
	w := write{aclKey(put.ACL), []byte{recordVersion}}
	if len(put.Sources) > 0 {
		text, err := json.Marshal(put.Sources)
		if err != nil {
			return write{}, err
		}
		w.value = append(w.value, text...)
	}
	return w, nil
}

func parseACLKey(key string) (a metadata.ACL, err error) {
	f := strings.Split(key, "/")
	if len(f) != 7 {
		return a, fmt.Errorf("%d parts of 7", len(f))
	}
	var numbers [4]int8
	for i := range numbers {
		n, err := strconv.ParseInt(f[i], 10, 8)
		if err != nil {
			return a, err
		}
		numbers[i] = int8(n)
	}
	var texts [3]string
	for i := range texts {
		b, err := base64.RawURLEncoding.DecodeString(f[4+i])
		if err != nil {
			return a, err
		}
		texts[i] = string(b)
	}
	return metadata.ACL{
		ResourceType: metadata.ACLResourceType(numbers[0]), Pattern: metadata.ACLPatternType(numbers[1]),
		Operation: metadata.ACLOperation(numbers[2]), Permission: metadata.ACLPermission(numbers[3]),
		ResourceName: texts[0], Principal: texts[1], Host: texts[2],
	}, nil
}
