// Package authz says who a client is, and what it may do.
package authz

import "strings"

// Principal is who a connection speaks for, in Kafka's form Type:Name.
type Principal struct {
	Type string // "User"
	Name string
}

// Anonymous is every client of a listener that asks for no credentials.
var Anonymous = Principal{Type: UserType, Name: "ANONYMOUS"}

// UserType is the one type of principal that listeners produce.
const UserType = "User"

// String is the form that ACLs and super.users are written in.
func (p Principal) String() string { return p.Type + ":" + p.Name }

// ParsePrincipal reads Type:Name; ok is false without a colon or with an empty
// type. The name may hold further colons.
func ParsePrincipal(s string) (p Principal, ok bool) {
	p.Type, p.Name, ok = strings.Cut(s, ":")
	return p, ok && p.Type != ""
}
