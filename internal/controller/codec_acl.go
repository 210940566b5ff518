package controller

import (
	"encoding/base64"
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
// because names may hold slashes. The value is the record's version.
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
	case string(value) != string(recordVersion):
		return nil, fmt.Errorf("%w: version %q, this binary reads %d", errBadRecord, value, recordVersion)
	}
	return putACL{a}, nil
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
