package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// MirrorKeys are the mirror keys that cross the wire, ascending. Keys 100, 101
// and 105 are commands between the members of one cluster; here they are calls of
// the controller.
var MirrorKeys = []int16{94, 95, 96, 97, 98, 99, 102, 103, 104, 106, 107}

func init() {
	for key, f := range map[int16]func() kmsg.Request{
		94:  func() kmsg.Request { return new(CreateClusterMirrorRequest) },
		95:  func() kmsg.Request { return new(StartMirrorTopicsRequest) },
		96:  func() kmsg.Request { return new(RemoveTopicsFromMirrorRequest) },
		97:  func() kmsg.Request { return new(LastMirroredEpochsRequest) },
		98:  func() kmsg.Request { return new(ListClusterMirrorsRequest) },
		99:  func() kmsg.Request { return new(DescribeClusterMirrorsRequest) },
		102: func() kmsg.Request { return new(PauseMirrorTopicsRequest) },
		103: func() kmsg.Request { return new(ResumeMirrorTopicsRequest) },
		104: func() kmsg.Request { return new(DeleteClusterMirrorRequest) },
		106: func() kmsg.Request { return new(RecoverMirrorTopicsRequest) },
		107: func() kmsg.Request { return new(ReadMirrorOffsetsRequest) },
	} {
		mirrorRequests[key-firstMirrorKey] = f
	}
}
