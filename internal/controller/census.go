package controller

import (
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// census counts what an operator watches in a cluster as a whole.
type census struct {
	revision             int64
	brokers, fenced      int
	partitions, offline  int
	underMinISR          int
	underReplicated      int
	withELR, reassigning int
	notPreferred         int
}

func takeCensus(img *metadata.Image, def defaults) *census {
	c := &census{revision: img.Revision}
	for _, b := range img.Brokers() {
		c.brokers++
		if b.Fenced {
			c.fenced++
		}
	}
	r := replicasOf(img, def)
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			c.partitions++
			count(&c.offline, p.Leader == metadata.NoLeader)
			count(&c.underMinISR, p.Leader == metadata.NoLeader || len(p.ISR) < r.minISR(t, p))
			count(&c.underReplicated, len(p.ISR) < len(p.Replicas)-len(p.AddingReplicas))
			count(&c.withELR, len(p.ELR) > 0)
			count(&c.reassigning, p.Reassigning())
			count(&c.notPreferred, p.Leader != p.Replicas[0])
		}
	}
	return c
}

// registerGauges shows the census of the image; it is taken once per revision.
func (c *Controller) registerGauges() {
	var last atomic.Pointer[census]
	take := func() *census {
		img := c.Image()
		cur := last.Load()
		if cur == nil || cur.revision != img.Revision {
			cur = takeCensus(img, c.defaults())
			last.Store(cur)
		}
		return cur
	}
	for name, of := range map[string]func(*census) int{
		"lockstep_cluster_brokers":                     func(c *census) int { return c.brokers },
		"lockstep_cluster_brokers_fenced":              func(c *census) int { return c.fenced },
		"lockstep_cluster_partitions":                  func(c *census) int { return c.partitions },
		"lockstep_cluster_partitions_offline":          func(c *census) int { return c.offline },
		"lockstep_cluster_partitions_under_min_isr":    func(c *census) int { return c.underMinISR },
		"lockstep_cluster_partitions_under_replicated": func(c *census) int { return c.underReplicated },
		"lockstep_cluster_partitions_with_elr":         func(c *census) int { return c.withELR },
		"lockstep_cluster_partitions_reassigning":      func(c *census) int { return c.reassigning },
		"lockstep_cluster_partitions_not_preferred":    func(c *census) int { return c.notPreferred },
	} {
		obs.Gauge(name, func() float64 { return float64(of(take())) })
	}
}
