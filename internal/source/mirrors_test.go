package source

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// peer is a server that advertises some keys and answers them from a table.
func peer(t *testing.T, answers map[int16]func(kmsg.Request) kmsg.Response) *Cluster {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	versions := kmsg.NewPtrApiVersionsResponse()
	for key := range answers {
		versions.ApiKeys = append(versions.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key})
	}
	versions.ApiKeys = append(versions.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 18, MaxVersion: 3})
	serve := func(conn net.Conn) {
		defer conn.Close()
		for {
			frame, err := wire.ReadFrame(conn, 1<<20, nil)
			if err != nil {
				return
			}
			h, body, err := wire.ParseRequestHeader(frame)
			if err != nil {
				return
			}
			var resp kmsg.Response = versions
			if h.Key != 18 {
				req := wire.NewRequest(h.Key)
				req.SetVersion(h.Version)
				if err := req.ReadFrom(body); err != nil {
					return
				}
				resp = answers[h.Key](req)
			}
			resp.SetVersion(min(h.Version, 3))
			if _, err := conn.Write(wire.AppendResponse(nil, h.CorrelationID, resp, wire.IsFlexible(h.Key, h.Version))); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return open(t, nil, l.Addr().String())
}

var mirrorKeys = []sdk.PartitionKey{
	{Topic: "orders", TopicID: [16]byte{1}, Partition: 0},
	{Topic: "orders", TopicID: [16]byte{1}, Partition: 1},
	{Topic: "logs", TopicID: [16]byte{2}, Partition: 0},
}

// W24, P7: what is not a clean answer is an error and never "not mirrored".
func TestLastMirroredEpochsByKey97(t *testing.T) {
	part := func(i, epoch int32, offset int64, code int16) wire.LastMirroredEpochsResponsePartition {
		return wire.LastMirroredEpochsResponsePartition{Partition: i, LastMirroredEpoch: epoch, LastMirroredOffset: offset, ErrorCode: code}
	}
	for name, tc := range map[string]struct {
		top    int16
		orders []wire.LastMirroredEpochsResponsePartition
		found  map[int]LastMirrored // by index in mirrorKeys
		fault  string
	}{
		"all":             {0, []wire.LastMirroredEpochsResponsePartition{part(0, 4, 80, 0), part(1, -1, -1, 0)}, map[int]LastMirrored{0: {4, 80}, 1: {-1, -1}, 2: {7, -1}}, ""},
		"one is loading":  {0, []wire.LastMirroredEpochsResponsePartition{part(0, 4, 80, 0), part(1, -1, -1, 14)}, map[int]LastMirrored{0: {4, 80}, 2: {7, -1}}, "orders-1: COORDINATOR_LOAD_IN_PROGRESS"},
		"one is missing":  {0, []wire.LastMirroredEpochsResponsePartition{part(0, 4, 80, 0)}, map[int]LastMirrored{0: {4, 80}, 2: {7, -1}}, "orders-1: partition is missing"},
		"not stopped":     {0, []wire.LastMirroredEpochsResponsePartition{part(0, 4, 80, 145), part(1, 4, 80, 0)}, map[int]LastMirrored{1: {4, 80}, 2: {7, -1}}, "orders-0: ERROR_145"},
		"nonsense":        {0, []wire.LastMirroredEpochsResponsePartition{part(0, -2, 80, 0), part(1, 4, -5, 0)}, map[int]LastMirrored{2: {7, -1}}, "orders-0: source answers epoch -2"},
		"no right at all": {144, nil, nil, "ERROR_144"},
	} {
		t.Run(name, func(t *testing.T) {
			c := peer(t, map[int16]func(kmsg.Request) kmsg.Response{97: func(r kmsg.Request) kmsg.Response {
				req := r.(*wire.LastMirroredEpochsRequest)
				if req.MirrorName != "m" || *req.RequesterClusterID != "us" || len(req.Topics) != 2 || req.Topics[0].TopicID != [16]byte{1} || len(req.Topics[0].Partitions) != 2 {
					t.Errorf("asked %+v", req)
				}
				resp := &wire.LastMirroredEpochsResponse{Topics: []wire.LastMirroredEpochsResponseTopic{
					{Name: "orders", Partitions: tc.orders}, {Name: "logs", Partitions: []wire.LastMirroredEpochsResponsePartition{part(0, 7, -1, 0)}},
				}}
				resp.SetStatus(tc.top, "")
				return resp
			}})
			found, supported, err := c.LastMirroredEpochs(t.Context(), "m", "us", mirrorKeys)
			checkFound(t, found, supported, err, tc.found, tc.fault)
			if tc.top == 144 && ErrorClass(err) != Authorization {
				t.Errorf("class %v", ErrorClass(err))
			}
		})
	}
}

func checkFound(t *testing.T, found map[sdk.PartitionKey]LastMirrored, supported bool, err error, want map[int]LastMirrored, fault string) {
	t.Helper()
	if !supported || len(found) != len(want) {
		t.Errorf("found %v, supported %v", found, supported)
	}
	for i, w := range want {
		if got, ok := found[mirrorKeys[i]]; !ok || got != w {
			t.Errorf("%s: %v, %v, want %v", mirrorKeys[i], got, ok, w)
		}
	}
	if fault == "" && err != nil || fault != "" && (err == nil || !strings.Contains(err.Error(), fault)) {
		t.Errorf("error %v, want …%s…", err, fault)
	}
}

func TestLastMirroredEpochsByKey99(t *testing.T) {
	state := func(mirror, state string) wire.DescribedMirror {
		return wire.DescribedMirror{MirrorName: mirror, Topics: []wire.DescribedMirrorTopic{{TopicName: "orders", Partitions: []wire.DescribedMirrorPartition{
			{Partition: 0, StateValue: state}, {Partition: 1, StateValue: "STOPPED"},
		}}}}
	}
	lookup := []wire.EpochLookupResult{
		{TopicID: [16]byte{1}, Partitions: []wire.EpochLookupPartition{{Partition: 0, LastMirrorEpoch: 4}, {Partition: 1, LastMirrorEpoch: -1}}},
		{TopicID: [16]byte{2}, Partitions: []wire.EpochLookupPartition{{Partition: 0, LastMirrorEpoch: 7}}},
	}
	all := map[int]LastMirrored{0: {4, -1}, 1: {-1, -1}, 2: {7, -1}}
	for name, tc := range map[string]struct {
		mirrors []wire.DescribedMirror
		lookup  []wire.EpochLookupResult
		found   map[int]LastMirrored
		fault   string
	}{
		"stopped":                    {[]wire.DescribedMirror{state("from-us", "STOPPED")}, lookup, all, ""},
		"mirrored by somebody else":  {[]wire.DescribedMirror{state("other", "MIRRORING")}, lookup, all, ""},
		"still mirrored from us":     {[]wire.DescribedMirror{state("from-us", "MIRRORING")}, lookup, map[int]LastMirrored{1: {-1, -1}, 2: {7, -1}}, "orders-0: source still mirrors it from us: state MIRRORING"},
		"left out":                   {nil, lookup[:1], map[int]LastMirrored{0: {4, -1}, 1: {-1, -1}}, "logs-0: partition is missing"},
		"mirror cannot be described": {[]wire.DescribedMirror{{MirrorName: "from-us", ErrorCode: 15}}, lookup, map[int]LastMirrored{}, "COORDINATOR_NOT_AVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			c := peer(t, map[int16]func(kmsg.Request) kmsg.Response{
				98: func(kmsg.Request) kmsg.Response {
					return &wire.ListClusterMirrorsResponse{Mirrors: []wire.ListedMirror{{MirrorName: "from-us", SourceClusterID: "us"}, {MirrorName: "other", SourceClusterID: "x"}}}
				},
				99: func(r kmsg.Request) kmsg.Response {
					if req := r.(*wire.DescribeClusterMirrorsRequest); *req.ClusterID != "us" || len(req.Lookups) != 2 || len(req.Lookups[0].Partitions) != 2 {
						t.Errorf("asked %+v", req)
					}
					return &wire.DescribeClusterMirrorsResponse{Mirrors: tc.mirrors, LookupResults: tc.lookup}
				},
			})
			found, supported, err := c.LastMirroredEpochs(t.Context(), "m", "us", mirrorKeys)
			checkFound(t, found, supported, err, tc.found, tc.fault)
		})
	}
}

func TestListMirrors(t *testing.T) {
	c := peer(t, map[int16]func(kmsg.Request) kmsg.Response{98: func(r kmsg.Request) kmsg.Response {
		if !r.(*wire.ListClusterMirrorsRequest).IncludeTopicNames {
			t.Error("topic names were not asked for")
		}
		return &wire.ListClusterMirrorsResponse{Mirrors: []wire.ListedMirror{{MirrorName: "a", SourceClusterID: "us", TopicNames: []string{"t"}}}}
	}})
	mirrors, supported, err := c.ListMirrors(t.Context(), nil)
	if err != nil || !supported || len(mirrors) != 1 || mirrors[0].Name != "a" || mirrors[0].SourceClusterID != "us" || mirrors[0].Topics[0] != "t" {
		t.Errorf("%+v, %v, %v", mirrors, supported, err)
	}
	c = peer(t, map[int16]func(kmsg.Request) kmsg.Response{98: func(kmsg.Request) kmsg.Response {
		resp := &wire.ListClusterMirrorsResponse{}
		resp.SetStatus(kerr.CoordinatorNotAvailable.Code, "later")
		return resp
	}})
	if _, supported, err := c.ListMirrors(t.Context(), nil); !supported || !errors.Is(err, kerr.CoordinatorNotAvailable) || !strings.Contains(err.Error(), "later") {
		t.Errorf("%v, %v", supported, err)
	}
}
