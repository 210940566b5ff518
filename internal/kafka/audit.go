package kafka

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// The audit log has one line of JSON per request that was refused a right or that
// changes the cluster: who, from where, what, and what came of it. Values are not
// in it, only names of resources, so no secret can be.

// changing are the keys whose every request is written down. Records and offsets
// are what clients work with, not changes of the cluster.
var changing = [maxKey + 1]bool{
	19: true, 20: true, 21: true, // topics, their records
	27: true,           // the end of a transaction by hand
	30: true, 31: true, // ACLs
	33: true, 44: true, // configs
	37: true,           // partitions
	42: true, 47: true, // groups, their offsets
	49: true,                                                                 // quotas
	51: true,                                                                 // SCRAM credentials
	57: true,                                                                 // features
	94: true, 95: true, 96: true, 102: true, 103: true, 104: true, 106: true, // mirrors
}

// Bounds of one line, whatever a client sends.
const (
	maxAuditRights = 32
	maxAuditText   = 256
)

// auditLine is one line. The fields are in the order in which one reads them.
type auditLine struct {
	Time      time.Time    `json:"time"`
	Principal string       `json:"principal"`
	Address   string       `json:"address"`
	Client    string       `json:"client,omitempty"` // what it calls itself
	Request   string       `json:"request"`
	Version   int16        `json:"version"`
	Outcome   string       `json:"outcome"` // ok, failed or denied
	Codes     []int16      `json:"codes,omitempty"`
	Rights    []auditRight `json:"rights,omitempty"`
	More      int          `json:"more,omitempty"` // rights beyond the bound
}

// auditRight is one right that the request needed.
type auditRight struct {
	Operation string `json:"operation"`
	Type      string `json:"type"`
	Name      string `json:"name"`
	Allowed   bool   `json:"allowed"`
}

// note remembers a right for the audit line of the request. The name may alias
// the request's frame, so it is copied.
func (s *Server) note(r *request, op authz.Operation, res authz.ResourceType, name string, allowed bool) {
	if s.o.Audit == nil || allowed && !changing[r.header.Key] {
		return
	}
	if len(r.rights) == maxAuditRights {
		r.moreRights++
		return
	}
	r.rights = append(r.rights, auditRight{op.String(), res.String(), clipAudit(name), allowed})
}

func clipAudit(s string) string {
	if len(s) > maxAuditText {
		s = s[:maxAuditText]
	}
	return strings.ToValidUTF8(strings.Clone(s), "?")
}

// audit writes the line of a request, if it has to have one, before its answer
// leaves. resp is nil for the keys that answer by themselves.
func (s *Server) audit(r *request, resp kmsg.Response) {
	if s.o.Audit == nil || !r.denied && !changing[r.header.Key] {
		return
	}
	line := auditLine{
		Time: r.received.UTC(), Principal: clipAudit(r.principal().String()), Address: r.conn.ip, Client: clipAudit(r.clientID()),
		Request: keyName(r.header.Key), Version: r.header.Version, Outcome: "ok", Codes: answeredCodes(resp),
		Rights: r.rights, More: r.moreRights,
	}
	switch {
	case r.denied:
		line.Outcome = "denied"
	case len(line.Codes) > 0:
		line.Outcome = "failed"
	}
	text, err := json.Marshal(line)
	if err == nil {
		// One write per line: the file is rotated between two, never within one.
		_, err = s.o.Audit.Write(append(text, '\n'))
	}
	if err != nil {
		s.metrics.auditLost.Inc()
		s.o.Logger.Error("a line of the audit log is lost", "request", line.Request, "principal", line.Principal, "err", err)
		if s.o.AuditLost != nil {
			s.o.AuditLost(err)
		}
	}
}

// answeredCodes are the error codes of an answer, each once, ascending. 0 is none.
func answeredCodes(resp kmsg.Response) []int16 {
	if resp == nil {
		return nil
	}
	codes := errorCodes(reflect.ValueOf(resp), nil)
	if m, ok := resp.(interface{ Status() (int16, string) }); ok {
		code, _ := m.Status()
		codes = append(codes, code)
	}
	slices.Sort(codes)
	codes = slices.Compact(codes)
	return slices.DeleteFunc(codes, func(c int16) bool { return c == 0 })
}

// errorCodes collects every field ErrorCode of an answer, however deep.
func errorCodes(v reflect.Value, codes []int16) []int16 {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return errorCodes(v.Elem(), codes)
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k != reflect.Struct && k != reflect.Pointer {
			return codes
		}
		for i := range v.Len() {
			codes = errorCodes(v.Index(i), codes)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Name == "ErrorCode" {
				codes = append(codes, int16(v.Field(i).Int()))
			} else if f.IsExported() {
				codes = errorCodes(v.Field(i), codes)
			}
		}
	}
	return codes
}
