package sim

import (
	"context"
	"slices"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/segment"
)

// wish has an operator of w do something to a topic, by the commands that there are.
func (p *pair) wish(w *World, id metadata.TopicID, what string) {
	b := w.anyBroker()
	name := p.names[id]
	if what == "" || b == nil {
		return
	}
	if what == "grow far" {
		what, w = "grow", w.other()
	}
	if !p.on[what] && !p.over {
		return
	}
	p.loop.note("operator "+what, int64(id[15]), int64(bit(w == p.w[1])))
	p.counts[what]++
	ctx := context.Background()
	topics := []string{name}
	c := b.mirrors.c
	switch what {
	case "start":
		b.mirrors.m.Go(func() {
			if b.img.Mirror(mirrorName) == nil {
				_ = c.Create(ctx, mirrorName, map[string]string{
					metadata.MirrorBootstrapServers: "b:1", "fetch.wait.max.ms": "250", "fetch.backoff.ms": "200", "request.timeout.ms": "2000",
					metadata.MirrorGroupsInclude: ".*",
				})
			}
			if b.img.Mirror(mirrorName) != nil {
				_, _ = c.Start(ctx, mirror.StartRequest{Mirror: mirrorName, Topics: topics})
			}
		})
	case "pause":
		b.mirrors.m.Go(func() { _, _ = c.Pause(ctx, mirrorName, topics, nil) })
	case "resume":
		b.mirrors.m.Go(func() { _, _ = c.Resume(ctx, mirrorName, topics, nil) })
	case "stop":
		b.mirrors.m.Go(func() { _, _ = c.Stop(ctx, mirrorName, topics, nil) })
	case "recover":
		b.mirrors.m.Go(func() { _, _ = c.Recover(ctx, mirrorName, topics, nil) })
	case "delete mirror":
		b.mirrors.m.Go(func() { _ = c.Delete(ctx, mirrorName) })
	case "grow":
		if t := w.store.image().TopicByID(id); t != nil && len(t.Partitions) < 2 {
			w.admin(controller.GrowTopics{{Topic: name, Total: int32(len(t.Partitions)) + 1}})
		}
	case "delete topic":
		if t := w.store.image().TopicByID(id); t != nil && (t.Stopped() || t.Attachment().Desired == metadata.DesiredNone) {
			w.admin(controller.DropTopic(id))
		}
	}
	b.proc.pausedUntil = max(b.proc.pausedUntil, p.loop.now)
	p.loop.after(time.Millisecond, &b.proc, func() {}) // settle begins it
}

// converge ends the faults and wants every mirror at its end: MIRRORING with the same
// bytes on both sides, or STOPPED and writable (LV-1 to LV-7).
func (p *pair) converge() {
	p.over = true
	p.link.heal()
	p.link.loss, p.link.slow = 0, 0
	for _, w := range p.w {
		w.faults.end()
		for _, id := range w.ids {
			if b := w.brokers[id]; !b.proc.up {
				p.loop.after(p.loop.between(0, time.Second), nil, func() {
					if !b.proc.up {
						b.start()
					}
				})
			}
		}
	}
	p.loop.note("faults end")
	began := p.loop.now
	until, settled, mended := began+2*healing, began, began
	for p.err() == nil && p.loop.now < until && p.loop.step() {
		p.check()
		if p.loop.now < settled {
			continue
		}
		settled = p.loop.now + 100*time.Millisecond
		for _, w := range p.w {
			w.writing = p.loop.now < began+5*time.Second
		}
		if p.loop.now > mended {
			mended = p.loop.now + 5*time.Second
			p.mend()
		}
		if !p.w[0].writing && p.unwell() == "" {
			for _, w := range p.w {
				w.check.full()
			}
			p.equal()
			return
		}
	}
	if p.err() == nil {
		p.w[0].check.fail("LV", "%v after the faults: %s", 2*healing, p.unwell())
	}
}

// mend does what an operator has to: what no retry mends is recovered, what is paused
// resumed, and of two mirrors that read each other one is stopped.
func (p *pair) mend() {
	for _, id := range p.topics {
		var active [2]bool
		for i, w := range p.w {
			t := w.store.image().TopicByID(id)
			if t == nil {
				continue
			}
			d := t.Attachment().Desired
			active[i] = d == metadata.DesiredMirroring || d == metadata.DesiredPaused
			switch {
			case active[i] && far(w, id) < len(t.Partitions):
				p.wish(w, id, "stop") // what it names as the reason of its failure stays
			case d == metadata.DesiredPaused:
				p.wish(w, id, "resume")
			case d == metadata.DesiredMirroring && slices.ContainsFunc(t.Partitions, func(mp *metadata.Partition) bool {
				m := t.MirrorPartition(mp)
				return m != nil && m.State == metadata.StateFailed && m.RetryAttempt < 0
			}):
				p.wish(w, id, "recover")
			}
		}
		if active[0] && active[1] {
			p.wish(p.w[0], id, "stop")
		}
	}
}

// far is how many partitions a topic has on the other side.
func far(w *World, id metadata.TopicID) int {
	if t := w.other().store.image().TopicByID(id); t != nil {
		return len(t.Partitions)
	}
	return 0
}

// unwell is what is not as it should be in the end.
func (p *pair) unwell() string {
	for _, w := range p.w {
		if s := w.unwell(); s != "" {
			return "cluster " + w.name + ": " + s
		}
		for _, t := range w.store.image().Topics() {
			d := t.Attachment().Desired
			for _, mp := range t.Partitions {
				s := t.MirrorState(mp)
				switch {
				case d == metadata.DesiredPaused, d == metadata.DesiredStopped && s != metadata.StateStopped, d == metadata.DesiredMirroring && s != metadata.StateMirroring:
					return "cluster " + w.name + ": " + t.Name + " is asked to be " + d.String() + " and is " + s.String() + ": " + mirrorText(t, mp)
				case d == metadata.DesiredMirroring:
					id := segment.LogID{Topic: t.ID, Partition: mp.Index}
					here, there := w.check.ghost(id), w.other().check.ghost(id)
					if here.frontier() != there.frontier() {
						return "cluster " + w.name + ": " + t.Name + " lags behind its source"
					}
				}
			}
		}
	}
	return ""
}

func mirrorText(t *metadata.Topic, mp *metadata.Partition) string {
	if m := t.MirrorPartition(mp); m != nil {
		return m.ErrorMessage
	}
	return ""
}
