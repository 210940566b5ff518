package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// fetchParser reads a Fetch response, versions 4 to 17, as it arrives, and
// hands each partition on. It keeps no part of the response.
//
//	v5   log start offset (KIP-107)
//	v7   error and session id of the whole response (KIP-227)
//	v11  preferred read replica (KIP-392), which we do not follow: it would
//	     answer below the high watermark of the leader
//	v12  flexible; diverging epoch, current leader (KIP-595)
//	v13  topic ids (KIP-516)
//	v16  addresses of new leaders (KIP-951), skipped: metadata tells them
type fetchParser struct {
	s       *stream
	version int16
	asked   []sdk.FetchPartition // of the request
	cursor  int

	header  sdk.PartitionHeader
	topic   []byte // name in the response, until v12
	topicID [16]byte
	body    recordReader
	onTag   func(tag uint32, b []byte) // a method value, made once

	throttleMillis int32
	sessionID      int32
}

func newFetchParser(s *stream) *fetchParser {
	p := &fetchParser{s: s}
	p.onTag = p.partitionTag
	p.body.s = s
	return p
}

// minPartition is the size of the smallest partition entry of any version:
// index, error, two offsets, two empty lengths.
const minPartition = 4 + 2 + 8 + 8 + 1 + 1

// parse reads the body of a response whose frame has begun. A *ResponseError
// leaves the stream at the end of the frame; after any other error the
// connection is useless.
func (p *fetchParser) parse(version int16, corr int32, asked []sdk.FetchPartition, h sdk.FetchHandler) error {
	s := p.s
	p.version, p.asked, p.cursor = version, asked, 0
	flexible := version >= 12
	if got := s.int32(); s.err == nil && got != corr {
		return fmt.Errorf("answer to request %d came for request %d", corr, got)
	}
	if flexible {
		s.tags(nil)
	}
	p.throttleMillis = s.int32()
	code := int16(0)
	p.sessionID = 0
	if version >= 7 {
		code = s.int16()
		p.sessionID = s.int32()
	}
	topics := s.length(flexible, true, 2)
	for ; topics > 0 && s.err == nil; topics-- {
		if err := p.parseTopic(flexible, h); err != nil {
			return err
		}
	}
	if flexible {
		s.tags(nil)
	}
	if s.err != nil {
		return s.err
	}
	if s.left > 0 {
		return fmt.Errorf("%d bytes after the end of the response", s.left)
	}
	if code != 0 {
		return &sdk.ResponseError{Code: code}
	}
	return nil
}

func (p *fetchParser) parseTopic(flexible bool, h sdk.FetchHandler) error {
	s := p.s
	if p.version >= 13 {
		if b := s.next(16); b != nil {
			copy(p.topicID[:], b)
		}
	} else {
		n := s.length(flexible, false, 1)
		if n > maxTopicName {
			return fmt.Errorf("response holds a topic name of %d bytes", n)
		}
		if b := s.next(max(n, 0)); b != nil {
			p.topic = append(p.topic[:0], b...)
		}
	}
	partitions := s.length(flexible, true, minPartition)
	for ; partitions > 0 && s.err == nil; partitions-- {
		if err := p.parsePartition(flexible, h); err != nil {
			return err
		}
	}
	if flexible {
		s.tags(nil)
	}
	return s.err
}

// maxTopicName is Kafka's limit with room to spare.
const maxTopicName = 1024

func (p *fetchParser) parsePartition(flexible bool, h sdk.FetchHandler) error {
	s, hdr := p.s, &p.header
	*hdr = sdk.PartitionHeader{LastStable: -1, LogStart: -1, Diverging: sdk.Undefined, LeaderID: -1, LeaderEpoch: -1}
	index := s.int32()
	hdr.ErrorCode = s.int16()
	hdr.HighWatermark = s.int64()
	hdr.LastStable = s.int64()
	if p.version >= 5 {
		hdr.LogStart = s.int64()
	}
	p.skipAborted(flexible)
	if p.version >= 11 {
		s.int32() // preferred read replica
	}
	n := max(s.length(flexible, true, 1), 0)
	if s.err != nil {
		return s.err
	}
	key := p.find(index)
	if key == nil {
		return fmt.Errorf("response holds partition %d of a topic that was not asked for like this", index)
	}
	hdr.Key, hdr.RecordBytes = *key, n
	if n == 0 {
		if flexible {
			s.tags(p.onTag)
		}
		if s.err != nil {
			return s.err
		}
		return p.hand(h)
	}
	if n >= longRecords {
		s.ahead = readAheadMin
	} else {
		s.ahead = readAhead
	}
	if err := p.hand(h); err != nil {
		return err
	}
	s.skip(p.body.left)
	if flexible {
		*hdr = sdk.PartitionHeader{Diverging: sdk.Undefined}
		s.tags(p.onTag)
		if hdr.Diverging != sdk.Undefined {
			return errors.New("response holds records and a diverging epoch for one partition")
		}
	}
	return s.err
}

// hand gives the partition to the handler. An error of the connection counts
// as such even if the handler hides it.
func (p *fetchParser) hand(h sdk.FetchHandler) error {
	p.body.left = p.header.RecordBytes
	if err := h.Partition(&p.header, &p.body); err != nil {
		return err
	}
	return p.s.err
}

// skipAborted passes over the aborted transactions, which a reader of
// uncommitted data gets none of.
func (p *fetchParser) skipAborted(flexible bool) {
	s := p.s
	for n := s.length(flexible, true, 16); n > 0 && s.err == nil; n-- {
		s.skip(16)
		if flexible {
			s.tags(nil)
		}
	}
}

// find is the asked partition with the response's topic and this index. The
// search begins behind the last one found, because sources keep the order.
func (p *fetchParser) find(index int32) *sdk.PartitionKey {
	for range p.asked {
		if p.cursor >= len(p.asked) {
			p.cursor = 0
		}
		key := &p.asked[p.cursor].PartitionKey
		p.cursor++
		if key.Partition != index {
			continue
		}
		if p.version >= 13 && key.TopicID == p.topicID || p.version < 13 && key.Topic == string(p.topic) {
			return key
		}
	}
	return nil
}

// partitionTag takes the tagged fields 0 (diverging epoch) and 1 (current
// leader).
func (p *fetchParser) partitionTag(tag uint32, b []byte) {
	switch {
	case tag == 0 && len(b) >= 12:
		p.header.Diverging = sdk.EpochEnd{Epoch: int32(binary.BigEndian.Uint32(b)), End: int64(binary.BigEndian.Uint64(b[4:]))}
	case tag == 1 && len(b) >= 8:
		p.header.LeaderID, p.header.LeaderEpoch = int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))
	}
}

// recordReader yields the record bytes of one partition.
type recordReader struct {
	s    *stream
	left int
}

func (r *recordReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	if len(p) > r.left {
		p = p[:r.left]
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.s.read(p)
	r.left -= n
	return n, err
}
