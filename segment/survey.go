package segment

import (
	"errors"
	"fmt"
	"slices"
)

// Damage is one place of a log that cannot be trusted.
type Damage struct {
	File     string
	Position int64 // in the file
	Bytes    int64 // from there on; 0 if it is bytes that are missing
	From, To int64 // offsets that may have been there: at most To - From records
	Reason   error

	base int64 // of the file
}

// Survey is what is left of a damaged log.
type Survey struct {
	Log     LogID
	Dir     string   // of its segments
	Damages []Damage // in the order of offsets; none: the log is whole

	// Files with damage hold so much that is good and will stay.
	Salvaged, SalvagedRecords int64 // batches, records

	// TornBytes at the end were never known to be durable. They are no damage, the
	// next start cuts them.
	TornBytes int64

	// Elsewhere says that the log's directory is not there and nobody asked for the
	// log by name: it may have been moved to another log directory, and AcceptLoss
	// leaves it alone.
	Elsewhere bool

	files []surveyed
}

// Lost is how many records are lost at most.
func (s *Survey) Lost() (n int64) {
	for _, d := range s.Damages {
		n += d.To - d.From
	}
	return n
}

// surveyed is one file as it is, or as it should be.
type surveyed struct {
	base, end int64 // end: of what the file has to hold when it is repaired
	path      string
	size      int64
	read      bool // from end to end, because the index does not vouch for it
	pieces    []piece
	damaged   bool
	epoch     int32 // of the last batch in front of it, -1 unknown
	next      int32 // of the first batch behind it, -1 unknown
}

// survey reads the files of a log for which doubt says so, and takes the others
// as the index describes them. It changes nothing.
func (r *recovery) survey(doubt func(*segment) bool) (*Survey, error) {
	all, err := r.l.noted()
	if err != nil {
		return nil, err
	}
	v := &Survey{Log: r.l.id, Dir: r.l.dir}
	segments := r.segments
	if r.known {
		segments = segments[findSegment(segments, r.mark.start):]
	}
	from := len(r.segments) - len(segments)
	end := r.mark.start
	if n := len(segments); n > 0 && (!r.known || segments[0].base <= end) {
		end = segments[0].base
	} else if n > 0 && end < r.mark.durable {
		v.missing(r.l, end, segments[0].base)
		end = segments[0].base
	}
	for i, s := range segments {
		limit := int64(-1)
		if i+1 < len(segments) {
			limit = segments[i+1].base
		}
		var f surveyed
		var torn int64
		n := slices.IndexFunc(all, func(n noted) bool { return n.base == s.base })
		trusted := false
		if n < 0 && !doubt(s) {
			if f, trusted, err = r.trust(s, limit); err != nil {
				return nil, err
			}
		}
		if !trusted {
			k := r.knownOf(s)
			if n >= 0 && all[n].known.size > 0 {
				k = all[n].known
			}
			if f, torn, err = r.look(s, limit, r.durableAt(from+i), k); err != nil {
				return nil, err
			}
		}
		end = v.add(r.l, f, limit, r.known)
		if v.TornBytes = torn; torn > 0 || limit > end && end >= r.durableAt(from+i) {
			break // what is behind goes with the torn tail
		}
	}
	if end < r.mark.durable {
		v.missing(r.l, end, r.mark.durable)
	}
	v.epochs()
	return v, nil
}

// trust takes a file as the index describes it, if its size is the one the index
// knows.
func (r *recovery) trust(s *segment, limit int64) (f surveyed, ok bool, err error) {
	f = surveyed{base: s.base, path: s.path()}
	if f.size, err = fileSize(r.l.store.disk, f.path); err != nil {
		return f, false, err
	}
	m := r.summaries[s.base]
	if m == nil || m.size != f.size || limit >= 0 && m.end != limit {
		return f, false, nil
	}
	p := piece{size: m.size, from: s.base, to: m.end, batches: 1, first: -1, last: -1}
	if n := len(m.epochs); n > 0 {
		p.first, p.last = m.epochs[0].Epoch, m.epochs[n-1].Epoch
	}
	f.end = m.end
	if m.size > 0 {
		f.pieces = []piece{p}
	}
	return f, true, nil
}

// knownOf is what the index or the marks know of a file's first bytes.
func (r *recovery) knownOf(s *segment) (k known) {
	if m := r.summaries[s.base]; m != nil {
		k = known{size: m.size, heads: m.times.heads}
	}
	if p := r.mark.proof; p.base == s.base && p.size > k.size {
		k = p.known
	}
	return k
}

// look reads one file. What is torn at its end is left out. Where each batch
// looks good and fits to its neighbours, but together they are not those that
// were written, nobody can say which is wrong, and none is good.
func (r *recovery) look(s *segment, limit, durable int64, k known) (f surveyed, torn int64, err error) {
	f = surveyed{base: s.base, end: s.base, path: s.path(), read: true}
	if f.size, err = fileSize(r.l.store.disk, f.path); err != nil {
		return f, 0, err
	}
	file, err := r.l.store.disk.open(f.path, false)
	if err != nil {
		return f, 0, err
	}
	defer file.Close()
	pieces, heads, err := salvage(file, s.base, f.size, limit, k)
	if err != nil {
		return f, 0, fmt.Errorf("read %s: %w", f.path, err)
	}
	if heads != nil && !slices.ContainsFunc(pieces, func(p piece) bool { return p.bad != nil && p.from < durable }) {
		pieces = []piece{{size: f.size, from: s.base, to: limit, bad: heads}}
	}
	f.pieces = pieces
	for i, p := range f.pieces {
		if p.bad != nil && p.from >= durable {
			f.pieces = f.pieces[:i]
			return f, max(f.size-p.pos, 1), nil
		}
		if p.to < 0 { // bad bytes at the end of the last file
			f.pieces[i].to = max(durable, p.from)
		}
		f.end = f.pieces[i].to
	}
	return f, 0, nil
}

// add takes a file into the survey, and returns where what is there, or is
// missing in it, ends.
func (v *Survey) add(l *Log, f surveyed, limit int64, known bool) int64 {
	end := f.end
	if n := len(f.pieces); n > 0 && f.pieces[n-1].bad != nil && f.pieces[n-1].size == 0 {
		// Nothing is wrong with the bytes that are there, some are missing behind them:
		// they get a file of their own, and this one stays as it is. In a log without
		// marks, which we may not have written, it is a hole.
		p := f.pieces[n-1]
		if f.pieces = f.pieces[:n-1]; !known {
			f.end = p.from
			end = limit
		} else if len(f.pieces) > 0 {
			f.end = p.from
			v.take(f)
			v.missing(l, p.from, p.to)
			return p.to
		} else {
			f.pieces = append(f.pieces, p)
		}
	}
	v.take(f)
	return end
}

func (v *Survey) take(f surveyed) {
	for _, p := range f.pieces {
		if p.bad != nil {
			f.damaged = true
			v.Damages = append(v.Damages, Damage{File: f.path, Position: p.pos, Bytes: p.size, From: p.from, To: p.to, Reason: p.bad, base: f.base})
		}
	}
	if f.damaged {
		for _, p := range f.pieces {
			v.Salvaged += p.batches
			v.SalvagedRecords += p.records
		}
	}
	v.files = append(v.files, f)
}

// missing adds a file that should be there.
func (v *Survey) missing(l *Log, from, to int64) {
	// An empty file of this name is no other file.
	if n := len(v.files); n > 0 && v.files[n-1].base == from {
		v.files = v.files[:n-1]
	}
	v.take(surveyed{
		base: from, end: to, path: l.store.disk.PathJoin(l.dir, fileName(from)),
		pieces: []piece{{from: from, to: to, bad: errMissingFile}},
	})
}

var errMissingFile = errors.New("file is missing or ends too early")

// epochs notes between which leader epochs each file has to stay.
func (v *Survey) epochs() {
	last := int32(-1)
	for i := range v.files {
		v.files[i].epoch = last
		for _, p := range v.files[i].pieces {
			if p.bad == nil && p.last >= 0 {
				last = p.last
			}
		}
	}
	next := int32(-1)
	for i := range slices.Backward(v.files) {
		v.files[i].next = next
		for _, p := range slices.Backward(v.files[i].pieces) {
			if p.bad == nil && p.first >= 0 {
				next = p.first
			}
		}
	}
}
