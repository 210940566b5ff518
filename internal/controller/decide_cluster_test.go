package controller

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// parseCluster reads the commands of clusters of several brokers; see TestDecide.
//
//	register id=1 [incarnation=2] [rack=a] [prev=4|clean] [durability=replicated] [ended] [unheard=2,3]
//	unfence id=1 [revision=4] [unheard=2,3]            fence ids=1,2            unregister id=1
//	drain id=1 [max=10]
//	offline orders 0 id=1 [partition-epoch=4] [unheard=2,3]
//	isr orders 0 leader=1 isr=1,2 [epoch=3] [partition-epoch=4] [stale=2]     stale: with an old broker epoch
//	elect orders 0 [unclean]        elect-offline
//	elect-unclean orders 0 leader=3 unusable=2        elect-longest orders 0 leader=2 reported=1,2,3
//	reassign orders 0 [replicas=1,2] [same-rf]        none: cancel
func (s *script) parseCluster(t *testing.T, d *datadriven.TestData, word func(int) string, vals map[string][]string, def defaults) []Command {
	num := func(k string, or int64) int64 {
		if len(vals[k]) == 0 {
			return or
		}
		n, err := strconv.ParseInt(vals[k][0], 10, 64)
		if err != nil {
			t.Fatalf("%s: %s: %v", d.Pos, k, err)
		}
		return n
	}
	ids := func(k string) []int32 {
		var ids []int32
		for _, v := range strings.FieldsFunc(strings.Join(vals[k], ","), func(r rune) bool { return r == ',' }) {
			n, err := strconv.Atoi(v)
			if err != nil {
				t.Fatalf("%s: %s: %v", d.Pos, k, err)
			}
			ids = append(ids, int32(n))
		}
		return ids
	}
	flag := func(k string) bool { _, ok := vals[k]; return ok }
	img := s.b.view()
	id := int32(num("id", 0))
	index64, _ := strconv.Atoi(word(1))
	index := int32(index64)
	topic := img.Topic(word(0))
	p := topic.Partition(index)
	if p == nil {
		p = &metadata.Partition{}
	}
	topicID := testID(99)
	if topic != nil {
		topicID = topic.ID
	}
	switch d.Cmd {
	case "register":
		r := RegisterBroker{ID: id, Incarnation: [16]byte{byte(num("incarnation", 1))}, Rack: strings.Join(vals["rack"], ""),
			Durability: strings.Join(vals["durability"], ""), PreviousEpoch: -1}
		if v := strings.Join(vals["prev"], ""); v == "clean" {
			r.PreviousEpoch = epochOf(img, id).Epoch
		} else if v != "" {
			r.PreviousEpoch = num("prev", 0)
		}
		return []Command{registerBroker{RegisterBroker: r, Ended: flag("ended"), Unheard: ids("unheard"), Defaults: def}}
	case "unfence":
		return []Command{unfenceBroker{BrokerEpoch: epochOf(img, id), Revision: num("revision", img.Revision), Unheard: ids("unheard"), Defaults: def}}
	case "fence":
		var brokers []BrokerEpoch
		for _, id := range ids("ids") {
			brokers = append(brokers, epochOf(img, id))
		}
		return []Command{fenceBrokers{brokers, def}}
	case "unregister":
		return []Command{unregisterBroker{id, def}}
	case "drain":
		return []Command{drainBroker{epochOf(img, id), int(num("max", maxDrained)), def}}
	case "offline":
		o := OfflineReplica{topicID, index, int32(num("partition-epoch", int64(p.PartitionEpoch)))}
		return []Command{resignReplicas{epochOf(img, id), []OfflineReplica{o, o}, ids("unheard"), def}}
	case "isr":
		leader := int32(num("leader", 0))
		wish := alterISR{Broker: epochOf(img, leader), Defaults: def, AlterISR: AlterISR{Topic: topicID, Partition: index,
			LeaderEpoch: int32(num("epoch", int64(p.LeaderEpoch))), PartitionEpoch: int32(num("partition-epoch", int64(p.PartitionEpoch)))}}
		for _, id := range ids("isr") {
			wish.ISR = append(wish.ISR, epochOf(img, id))
		}
		for i := range wish.ISR {
			if wish.ISR[i].ID == int32(num("stale", -1)) {
				wish.ISR[i].Epoch--
			}
		}
		return []Command{wish}
	case "elect":
		return []Command{electLeader{ElectLeader{word(0), index, flag("unclean")}, def}}
	case "elect-offline":
		return []Command{electOffline{ids("unheard"), def}}
	case "elect-unclean":
		return []Command{electUnclean{topicID, index, int32(num("leader", 0)), ids("unusable"), def}}
	case "elect-longest":
		return []Command{electLongest{topicID, index, int32(num("leader", 0)), ids("reported"), def}}
	case "reassign":
		return []Command{reassign{Reassign{word(0), index, ids("replicas")}, !flag("same-rf"), def}}
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return nil
}
