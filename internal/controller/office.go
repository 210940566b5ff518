package controller

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// contender is a node that stands for the controller's office. Of all that stand,
// the one that came first holds it.
type contender struct {
	key     string
	created int64 // create revision of key: who came first
	lease   int64
	node    int32
	addr    string // of its controller listener; empty: it has none
}

// candidacy is the value of an election key.
type candidacy struct {
	Node int32  `json:"node"`
	Addr string `json:"addr,omitempty"`
}

func (c candidacy) String() string {
	b, _ := json.Marshal(c) // a number and a string
	return string(b)
}

// parseContender reads an election key; a value that nobody of ours wrote is a
// contender that cannot be reached.
func parseContender(kv *mvccpb.KeyValue) contender {
	c := contender{key: string(kv.Key), created: kv.CreateRevision, lease: kv.Lease, node: -1}
	var v candidacy
	if name, ok := strings.CutPrefix(string(kv.Value), "node-"); ok { // up to the first clusters
		if n, err := strconv.ParseInt(name, 10, 32); err == nil {
			c.node = int32(n)
		}
	} else if json.Unmarshal(kv.Value, &v) == nil {
		c.node, c.addr = v.Node, v.Addr
	}
	return c
}

// office is who stands for the office, the holder first.
type office []contender

func (o office) with(c contender) office {
	o = slices.Clone(o.without(c.key))
	i, _ := slices.BinarySearchFunc(o, c, func(a, b contender) int { return int(a.created - b.created) })
	return slices.Insert(o, i, c)
}

func (o office) without(key string) office {
	i := slices.IndexFunc(o, func(c contender) bool { return c.key == key })
	if i < 0 {
		return o
	}
	return slices.Delete(slices.Clone(o), i, i+1)
}

// holder is the active controller; false while there is none.
func (o office) holder() (contender, bool) {
	if len(o) == 0 {
		return contender{}, false
	}
	return o[0], true
}

// of is the candidacies of one node.
func (o office) of(node int32) []contender {
	var of []contender
	for _, c := range o {
		if c.node == node {
			of = append(of, c)
		}
	}
	return of
}

func isElectionKey(key string) bool { return strings.HasPrefix(key, keyElection+"/") }
