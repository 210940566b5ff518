package quota

import (
	"iter"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Kind is what a quota limits.
type Kind uint8

const (
	Produce     Kind = iota // bytes per second of produce requests
	Fetch                   // bytes per second of fetch answers
	Request                 // percent of a thread's time
	Mutation                // topics and partitions created and deleted per second
	Connections             // connections per second from an address

	kinds = 5
)

var kindOf = map[string]Kind{
	metadata.QuotaProduce: Produce, metadata.QuotaFetch: Fetch, metadata.QuotaRequest: Request,
	metadata.QuotaMutation: Mutation, metadata.QuotaConnections: Connections,
}

// limits are one entity's; 0: none.
type limits [kinds]float64

// rules are the quotas of one image. They never change.
type rules struct {
	any   [kinds]bool // whether there is a quota of the kind at all
	byWho map[metadata.QuotaEntity]limits
}

func newRules(quotas iter.Seq2[metadata.QuotaEntity, map[string]float64]) *rules {
	r := &rules{byWho: make(map[metadata.QuotaEntity]limits)}
	for e, values := range quotas {
		var l limits
		for name, v := range values { // each goes to a place of its own
			if k, ok := kindOf[name]; ok && v > 0 {
				l[k] = v
				r.any[k] = true
			}
		}
		r.byWho[e] = l
	}
	return r
}

func named(s string) metadata.QuotaName { return metadata.QuotaName{Set: true, Name: s} }

var (
	others = metadata.QuotaName{Set: true, Default: true}
)

// find answers the limit of a client by Kafka's precedence, and the entity whose
// window it is measured in; false if it has none.
func (r *rules) find(k Kind, user, client string) (limit float64, who metadata.QuotaEntity, ok bool) {
	u, c := named(user), named(client)
	for _, p := range [...]struct{ rule, who metadata.QuotaEntity }{
		{metadata.QuotaEntity{User: u, ClientID: c}, metadata.QuotaEntity{User: u, ClientID: c}},
		{metadata.QuotaEntity{User: u, ClientID: others}, metadata.QuotaEntity{User: u, ClientID: c}},
		{metadata.QuotaEntity{User: u}, metadata.QuotaEntity{User: u}},
		{metadata.QuotaEntity{User: others, ClientID: c}, metadata.QuotaEntity{User: u, ClientID: c}},
		{metadata.QuotaEntity{User: others, ClientID: others}, metadata.QuotaEntity{User: u, ClientID: c}},
		{metadata.QuotaEntity{User: others}, metadata.QuotaEntity{User: u}},
		{metadata.QuotaEntity{ClientID: c}, metadata.QuotaEntity{ClientID: c}},
		{metadata.QuotaEntity{ClientID: others}, metadata.QuotaEntity{ClientID: c}},
	} {
		if l := r.byWho[p.rule][k]; l > 0 {
			return l, p.who, true
		}
	}
	return 0, metadata.QuotaEntity{}, false
}

// findIP is find for the address of a connection.
func (r *rules) findIP(ip string) (limit float64, who metadata.QuotaEntity, ok bool) {
	who = metadata.QuotaEntity{IP: named(ip)}
	for _, rule := range [...]metadata.QuotaEntity{who, {IP: others}} {
		if l := r.byWho[rule][Connections]; l > 0 {
			return l, who, true
		}
	}
	return 0, who, false
}
