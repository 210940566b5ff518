package segment

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// durableState is what a power cut leaves for certain, and what it may leave.
type durableState map[int]*inode

type inode struct {
	data    []byte         // of a file: durable; never written to, only replaced
	names   map[string]int // of a directory: durable; nil for a file
	pending []pendingOp
}

type pendingOp struct {
	seq int
	fsOp
}

func (d durableState) clone() durableState {
	c := make(durableState, len(d))
	for i, n := range d {
		c[i] = &inode{data: n.data, names: maps.Clone(n.names), pending: slices.Clone(n.pending)}
	}
	return c
}

// apply notes one more operation that was done.
func (d durableState) apply(seq int, o fsOp) {
	switch o.kind {
	case opCreate:
		if d[o.ino] == nil {
			d[o.ino] = &inode{}
			if o.isDir {
				d[o.ino].names = map[string]int{}
			}
		}
		d[o.dir].pending = append(d[o.dir].pending, pendingOp{seq, o})
	case opRemove, opRename:
		d[o.dir].pending = append(d[o.dir].pending, pendingOp{seq, o})
	case opWrite, opTruncate:
		d[o.ino].pending = append(d[o.ino].pending, pendingOp{seq, o})
	case opSync, opSyncDir:
		n := d[o.ino]
		if n.names != nil {
			for _, p := range n.pending {
				p.changeNames(n.names)
			}
		} else if len(n.pending) > 0 {
			n.data = n.all()
		}
		n.pending = nil
	}
}

func (o fsOp) changeNames(names map[string]int) {
	switch o.kind {
	case opCreate:
		names[o.name] = o.ino
	case opRemove:
		if names[o.name] == o.ino {
			delete(names, o.name)
		}
	case opRename:
		if names[o.name] == o.ino {
			delete(names, o.name)
		}
		names[o.newName] = o.ino
	}
}

func (o fsOp) changeData(data []byte) []byte {
	if o.kind == opTruncate {
		return resize(data, o.at)
	}
	data = resize(data, max(int64(len(data)), o.at+int64(len(o.data))))
	copy(data[o.at:], o.data)
	return data
}

func resize(data []byte, size int64) []byte {
	if size <= int64(len(data)) {
		return data[:size]
	}
	return append(data, make([]byte, size-int64(len(data)))...)
}

func (n *inode) all() []byte {
	data := slices.Clone(n.data)
	for _, p := range n.pending {
		data = p.changeData(data)
	}
	return data
}

// loss is how much of what was not synced a power cut leaves.
type loss int

const (
	loseAll  loss = iota // nothing of it is there
	loseHalf             // a random part
	loseNone             // as after kill -9
)

func (l loss) String() string { return [...]string{"nothing", "a random half", "all"}[l] }

// crash is the file system after a power cut.
func (d durableState) crash(l loss, rng *rand.Rand) *crashFS {
	// Names and data are lost in one of several ways, each on its own: among the
	// combinations are names that are durable before their data and the reverse.
	var cut, names, blocks int
	if l == loseHalf {
		names, blocks = rng.IntN(6), rng.IntN(6)
		cut = d.newest(rng)
	}
	next := &crashFS{last: 1, base: durableState{}, locks: map[string]bool{}, usage: plenty}
	made := map[int]*node{}
	var build func(ino int) *node
	build = func(ino int) *node {
		if n := made[ino]; n != nil {
			return n
		}
		from := d[ino]
		n := &node{ino: ino}
		made[ino] = n
		next.last = max(next.last, ino)
		if from.names == nil {
			n.data, n.shared = from.survives(l, blocks, rng), true
			next.base[ino] = &inode{data: n.data}
			return n
		}
		kept := from.namesLeft(l, names, cut, rng)
		n.children = map[string]*node{}
		next.base[ino] = &inode{names: kept}
		for _, name := range slices.Sorted(maps.Keys(kept)) {
			n.children[name] = build(kept[name])
		}
		return n
	}
	next.root = build(1)
	return next
}

// crashWith is a power cut that leaves all data, and of the unsynced operations
// on names those that keep says.
func (d durableState) crashWith(keep func(o fsOp) bool) *crashFS {
	d = d.clone()
	for _, n := range d {
		if n.names != nil {
			n.pending = slices.DeleteFunc(n.pending, func(p pendingOp) bool { return !keep(p.fsOp) })
		}
	}
	return d.crash(loseNone, nil)
}

// newest chooses a moment among the unsynced operations on names.
func (d durableState) newest(rng *rand.Rand) int {
	var seqs []int
	for _, n := range d {
		if n.names != nil {
			for _, p := range n.pending {
				seqs = append(seqs, p.seq)
			}
		}
	}
	if len(seqs) == 0 {
		return 0
	}
	slices.Sort(seqs)
	return seqs[rng.IntN(len(seqs))]
}

func (n *inode) namesLeft(l loss, way, cut int, rng *rand.Rand) map[string]int {
	names := maps.Clone(n.names)
	for _, p := range n.pending {
		o := p.fsOp
		keep := l == loseNone
		if l == loseHalf {
			switch way {
			case 0: // none
			case 1:
				keep = true
			case 2, 3: // a journal: everything up to a moment
				keep = p.seq <= cut
			case 4: // any of them, in any order
				keep = rng.IntN(2) == 0
			case 5: // a rename is two operations: the new name comes first
				keep = rng.IntN(2) == 0
				if o.kind == opRename && !o.isDir && rng.IntN(2) == 0 {
					o = fsOp{kind: opCreate, name: o.newName, ino: o.ino}
				}
			}
		}
		if keep {
			o.changeNames(names)
		}
	}
	return names
}

// survives is a file's content after the power cut.
func (n *inode) survives(l loss, way int, rng *rand.Rand) []byte {
	switch {
	case len(n.pending) == 0 || l == loseAll || l == loseHalf && way == 0:
		return n.data
	case l == loseNone || way == 1:
		return n.all()
	}
	data := slices.Clone(n.data)
	if way == 2 { // the size is there, the data is zeros
		return resize(data, int64(len(n.all())))
	}
	for _, p := range n.pending {
		if p.kind == opTruncate {
			if rng.IntN(2) == 0 {
				data = p.changeData(data)
			}
			continue
		}
		const block = 4096
		for at, rest := p.at, p.data; len(rest) > 0; {
			part := rest[:min(int64(len(rest)), block-at%block)]
			o := fsOp{kind: opWrite, at: at, data: part}
			at, rest = at+int64(len(part)), rest[len(part):]
			if rng.IntN(2) == 0 {
				continue
			}
			if way >= 4 && rng.IntN(2) == 0 { // torn inside of the block
				if i := rng.IntN(len(part) + 1); rng.IntN(4) > 0 {
					o.data = part[:i]
				} else {
					o.at, o.data = o.at+int64(i), part[i:]
				}
			}
			if len(o.data) > 0 {
				data = o.changeData(data)
			}
		}
	}
	return data
}
