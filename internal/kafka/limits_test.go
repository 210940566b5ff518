package kafka

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// A client that hangs up in the middle of a wait leaves nothing behind, however
// long it had asked to wait.
func TestWaitEndsWithItsClient(t *testing.T) {
	topic := newTopic(t, 1)
	s := anotherServer(t, func(o *Options) { o.IdleTimeout = time.Second })
	req := fetchFrom(topic, 0, 0)
	req.MinBytes, req.MaxWaitMillis = 1, math.MaxInt32
	for _, behind := range []int{0, 1, 1000, 3 * readBuffer} { // bytes of what would be the next request
		nc := dialRaw(t, addrOf(s))
		first := kmsg.NewPtrApiVersionsRequest() // once that is answered the server has the connection
		nc.send(0, first)
		nc.receive(first)
		if _, err := nc.Write(append(wire.AppendRequest(nil, 1, "gone", req), make([]byte, behind)...)); err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatalf("%d connections are open though their clients are gone", s.connections())
	}
}

// What a client sends while its request waits is answered after it, and the end
// of the wait does not disturb it.
func TestRequestBehindAWait(t *testing.T) {
	topic := newTopic(t, 1)
	c := dialRaw(t, testBroker(t).addr)
	wait, next := fetchFrom(topic, 0, 0), kmsg.NewPtrMetadataRequest()
	wait.MinBytes, wait.MaxWaitMillis = 1, 300
	next.SetVersion(9)
	for corr := int32(0); corr < 20; corr += 2 {
		c.send(corr, wait)
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // the server is waiting by then
		if n, err := c.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
			t.Fatal(n, err)
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if corr%4 == 0 {
			c.send(corr+1, next)
		}
		if got, _ := c.receive(wait); got != corr {
			t.Fatalf("answer %d, want %d", got, corr)
		}
		if corr%4 == 0 {
			if got, _ := c.receive(next); got != corr+1 {
				t.Fatalf("answer %d, want %d", got, corr+1)
			}
		}
		wait.MaxWaitMillis = 200
	}
}

func TestInternalTopicsAreNotForClients(t *testing.T) {
	s, _ := groupServer(t)
	c := dial(t, addrOf(s))
	find := kmsg.NewPtrFindCoordinatorRequest() // makes the topic
	find.CoordinatorKey = "g"
	ask[*kmsg.FindCoordinatorResponse](t, c, find)
	topic := s.o.Controller.Image().Topic(group.TopicName)
	if topic == nil {
		t.Fatal("no such topic")
	}
	resp := ask[*kmsg.ProduceResponse](t, c, produceTo(topic, 0, 1, batchOf("not a group")))
	if code := produced(t, resp).ErrorCode; code != kerr.InvalidTopicException.Code {
		t.Errorf("a client's write to %s: code %d", topic.Name, code)
	}
}

// A request of a group may be larger than others: what one member may say is the
// group's to decide, and its answer is an error code. Any other is not read.
func TestLargeGroupRequests(t *testing.T) {
	s, _ := groupServer(t)
	c := dial(t, addrOf(s))
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = t.Name()
	ask[*kmsg.FindCoordinatorResponse](t, c, find)
	join := kmsg.NewPtrJoinGroupRequest()
	join.SetVersion(3) // a member at once
	join.Group, join.ProtocolType = t.Name(), "consumer"
	join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 6000, 6000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: make([]byte, 3<<20)}}
	resp := ask[*kmsg.JoinGroupResponse](t, c, join)
	if resp.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("code %d", resp.ErrorCode)
	}
	create := kmsg.NewPtrMetadataRequest()
	create.SetVersion(4)
	for range 3 << 10 {
		name := string(make([]byte, 1<<10))
		create.Topics = append(create.Topics, kmsg.MetadataRequestTopic{Topic: &name})
	}
	if _, err := c.RequestVersion(t.Context(), create); err == nil {
		t.Error("Metadata of 3 MiB was read")
	}
}
