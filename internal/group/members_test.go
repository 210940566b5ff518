package group

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Clients that follow the protocol, some with instance ids, meet a group: they
// come, leave, vanish and return, lose answers, and the log refuses writes now
// and then. Whatever happens, every request is answered once, nobody gets what
// was assigned to another, and once the trouble ends the group settles with all
// clients in one generation.
func TestMembersModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &membersModel{now: epoch0, asked: map[ticket]func(any){}}
		w.o = Options{}
		if rapid.Bool().Draw(t, "delay") {
			w.o.InitialRebalanceDelay = 3 * time.Second
		} else {
			w.o.InitialRebalanceDelay = -1
		}
		w.o.MinSessionTimeout = time.Second
		w.o.NewMemberTimeout = 20 * time.Second
		w.o.EnsureDefaults()
		w.m = newMachine("g", &w.o, w.now)
		for i := range 4 {
			c := &modelClient{w: w, name: fmt.Sprint("c", i)}
			if i%2 == 1 {
				c.instance = fmt.Sprint("i", i)
			}
			w.clients = append(w.clients, c)
		}
		client := rapid.SampledFrom(w.clients)
		t.Repeat(map[string]func(*rapid.T){
			"act": func(t *rapid.T) { client.Draw(t, "client").act(t) },
			"leave": func(t *rapid.T) {
				c := client.Draw(t, "client")
				if c.id != "" && !c.waiting {
					w.step(t, leaveInput{w.ask(t, func(any) {}), &LeaveRequest{Group: "g", Members: []LeaveMember{{MemberID: c.id, InstanceID: c.instance}}}})
					c.reset()
				}
			},
			"drop the connection": func(t *rapid.T) {
				c := client.Draw(t, "client")
				c.life++
				c.waiting, c.joined, c.assigned = false, false, false
			},
			"vanish": func(t *rapid.T) { client.Draw(t, "client").vanish() },
			"time": func(t *rapid.T) {
				w.advance(t, time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms"))*time.Millisecond)
			},
			"stored": func(t *rapid.T) {
				if len(w.held) > 0 {
					w.store(t, nil)
				}
			},
			"refused": func(t *rapid.T) {
				if len(w.held) > 0 {
					w.store(t, errors.New("refused"))
				}
			},
			"": func(t *rapid.T) { w.check(t) },
		})

		for range 120 {
			for len(w.held) > 0 {
				w.store(t, nil)
			}
			for _, c := range w.clients {
				c.act(t)
			}
			w.advance(t, 500*time.Millisecond)
		}
		w.check(t)
		if w.m.state != Stable || len(w.m.members) != len(w.clients) {
			t.Fatalf("not settled: %s with %d members, %d joining", w.m.state, len(w.m.members), w.m.joining)
		}
		for _, c := range w.clients {
			if !c.assigned || c.generation != w.m.generation {
				t.Fatalf("client %s is not settled: %+v", c.name, c)
			}
		}
		if len(w.asked) != 0 {
			t.Fatalf("%d requests were never answered", len(w.asked))
		}
	})
}

type membersModel struct {
	o       Options
	m       *machine
	now     time.Time
	clients []*modelClient
	asked   map[ticket]func(any)
	tickets ticket
	held    []write
}

func (w *membersModel) ask(_ *rapid.T, fn func(any)) ticket {
	w.tickets++
	w.asked[w.tickets] = fn
	return w.tickets
}

func (w *membersModel) step(t *rapid.T, in any) {
	var fx effects
	if err := w.m.step(w.now, in, &fx); err != nil {
		t.Fatal(err)
	}
	for _, r := range fx.replies {
		fn := w.asked[r.to]
		if fn == nil {
			t.Fatalf("answered twice: %v", r)
		}
		delete(w.asked, r.to)
		fn(r.result)
	}
	w.held = append(w.held, fx.writes...)
}

func (w *membersModel) store(t *rapid.T, err error) {
	h := w.held[0]
	w.held = w.held[1:]
	w.step(t, stored{h.done, err})
}

func (w *membersModel) advance(t *rapid.T, d time.Duration) {
	end := w.now.Add(d)
	for !w.m.wake.IsZero() && !w.m.wake.After(end) {
		if w.m.wake.After(w.now) {
			w.now = w.m.wake
		}
		w.step(t, tick{})
	}
	w.now = end
}

func (w *membersModel) check(t *rapid.T) {
	joining := 0
	for id, mem := range w.m.members {
		if mem.join != 0 {
			joining++
			if w.asked[mem.join] == nil {
				t.Fatalf("%s waits with a ticket that was answered", id)
			}
		}
		if mem.sync != 0 && w.asked[mem.sync] == nil {
			t.Fatalf("%s syncs with a ticket that was answered", id)
		}
		if mem.timed() && (w.m.wake.IsZero() || w.m.wake.After(mem.deadline)) {
			t.Fatalf("nobody wakes for the session of %s", id)
		}
	}
	if joining != w.m.joining {
		t.Fatalf("%d join, counted %d", joining, w.m.joining)
	}
	if !w.m.joinBy.IsZero() && w.m.wake.After(w.m.joinBy) || !w.m.syncBy.IsZero() && w.m.wake.After(w.m.syncBy) {
		t.Fatal("nobody wakes for the rebalance")
	}
}

// modelClient does what a consumer does, one request at a time.
type modelClient struct {
	w          *membersModel
	name       string
	instance   string
	life       int // counts lost connections, so that answers to a former one are lost
	id         string
	generation int32
	waiting    bool // for an answer
	joined     bool // and must sync
	assigned   bool
	members    []JoinMember // as leader
}

func (c *modelClient) reset() {
	c.id, c.generation, c.joined, c.assigned, c.members = "", -1, false, false, nil
}

func (c *modelClient) vanish() {
	c.life++
	c.waiting = false
	c.reset()
}

// who is what the client's assignment says; a static member keeps its own
// through a change of id.
func who(id, instance string) string {
	if instance != "" {
		return instance
	}
	return id
}

func (c *modelClient) act(t *rapid.T) {
	if c.waiting {
		return
	}
	c.waiting = true
	life := c.life
	ask := func(fn func(any)) ticket {
		return c.w.ask(t, func(r any) {
			if c.life == life {
				c.waiting = false
				fn(r)
			}
		})
	}
	failed := func(err error) bool {
		switch {
		case err == nil:
			return false
		case errors.Is(err, ErrUnknownMember), errors.Is(err, ErrFencedInstance), errors.Is(err, ErrIllegalGeneration):
			c.reset()
		default:
			c.joined, c.assigned = false, false
		}
		return true
	}
	switch {
	case c.assigned:
		c.w.step(t, heartbeatInput{ask(func(r any) {
			err, _ := r.(error)
			failed(err)
		}), &HeartbeatRequest{Group: "g", MemberID: c.id, InstanceID: c.instance, Generation: c.generation}})
	case c.joined:
		s := &SyncRequest{Group: "g", MemberID: c.id, InstanceID: c.instance, Generation: c.generation}
		for _, m := range c.members {
			s.Assignments = append(s.Assignments, Assignment{m.MemberID, []byte(who(m.MemberID, m.InstanceID))})
		}
		c.w.step(t, syncInput{ask(func(r any) {
			res := r.(SyncResult)
			if failed(res.Err) {
				return
			}
			if got := string(res.Assignment); got != who(c.id, c.instance) {
				t.Fatalf("%s got the assignment of %s", who(c.id, c.instance), got)
			}
			c.assigned = true
		}), s})
	default:
		j := &JoinRequest{
			Group: "g", MemberID: c.id, InstanceID: c.instance, ClientID: c.name,
			SessionTimeout: 8 * time.Second, RebalanceTimeout: 10 * time.Second, ProtocolType: "consumer",
			Protocols: []Protocol{{"range", nil}}, RequireKnownID: c.instance == "", CanSkipAssignment: true,
		}
		newID := fmt.Sprintf("%s-%d", c.name, c.w.tickets)
		c.w.step(t, joinInput{ask(func(r any) {
			res := r.(JoinResult)
			if errors.Is(res.Err, ErrMemberIDRequired) {
				c.id = res.MemberID
				return
			}
			if failed(res.Err) {
				return
			}
			c.id, c.generation, c.joined, c.members = res.MemberID, res.Generation, true, nil
			if res.Leader == c.id && !res.SkipAssignment {
				c.members = res.Members
			}
		}), j, newID})
	}
}
