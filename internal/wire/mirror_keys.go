package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// NewMirrorRequest gives an empty mirror request for its key, nil for a key
// that is not served. Keys 100, 101, 105 and 107 are commands between the
// members of one cluster; here they are calls of the controller and never cross
// the wire.
func NewMirrorRequest(key int16) kmsg.Request {
	switch key {
	case 94:
		return new(CreateClusterMirrorRequest)
	case 95:
		return new(StartMirrorTopicsRequest)
	case 96:
		return new(RemoveTopicsFromMirrorRequest)
	case 97:
		return new(LastMirroredEpochsRequest)
	case 98:
		return new(ListClusterMirrorsRequest)
	case 99:
		return new(DescribeClusterMirrorsRequest)
	case 102:
		return new(PauseMirrorTopicsRequest)
	case 103:
		return new(ResumeMirrorTopicsRequest)
	case 104:
		return new(DeleteClusterMirrorRequest)
	case 106:
		return new(RecoverMirrorTopicsRequest)
	}
	return nil
}

// MirrorKeys are the keys NewMirrorRequest knows, ascending.
var MirrorKeys = []int16{94, 95, 96, 97, 98, 99, 102, 103, 104, 106}
