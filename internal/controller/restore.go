package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A restore founds a cluster with the metadata of a backup.
//
// Where the metadata are an etcd of the operator's, it writes them there. Where they
// are inside of the controllers, there is no etcd yet: the backup is put into the
// empty metadata directory (stagedFile), and the controllers write it when they found
// their cluster together. Whoever of them has it writes the same keys, and each
// transaction of that compares the format key, which comes last: who is late changes
// nothing.

const (
	// keyRestoring holds the id of the backup that is being written.
	keyRestoring = keyRoot + "restoring"
	// keyRestored holds the id of the backup that the cluster began with.
	keyRestored = keyRoot + "restored"
	stagedFile  = "restore.backup"

	// What the cluster did after the backup was taken, nobody knows: its numbers are
	// raised by more than it can have used.
	epochRaise      = 1 << 20 // elections, ISR changes and barriers of one partition
	producerIDRaise = 1 << 40
)

// ErrNotEmpty is a restore into metadata that exist.
var ErrNotEmpty = errors.New("there is metadata already")

// restored answers the keys to write: those of the backup, as far as they are still
// true of a cluster whose logs went on after it.
//
//   - No broker is registered: each does that when it starts, and its old epoch is no
//     epoch any more.
//   - No partition has a leader or an ISR: the ISR of then may lack what was
//     acknowledged since. All replicas tell how far their logs reach, and the one with
//     the newest leads (rule 8).
//   - Leader epochs, partition epochs and producer ids begin above any that can have
//     been given since.
//   - Mirrors are paused: a topic may have been failed over since, and going on by
//     itself would cut what was written to it then.
func (b *Backup) restored() ([]write, error) {
	attached := make(map[metadata.TopicID]metadata.Attachment)
	for _, w := range b.keys {
		if id, ok := strings.CutPrefix(keyRoot+w.key, dirAttach); ok {
			topic, err := metadata.ParseTopicID(id)
			if err != nil {
				return nil, err
			}
			attached[topic] = metadata.ParseMirrorName(string(w.value))
		}
	}
	lives, err := codec{}.encode(setLives{metadata.Lives{LeaderEpoch: epochRaise, Barrier: epochRaise}}) // deleted since
	if err != nil {
		return nil, err
	}
	out := []write{lives}
	for _, w := range b.keys {
		w.key = keyRoot + w.key
		keep, err := restoreKey(&w, attached)
		if err != nil {
			return nil, fmt.Errorf("restore %s: %w", w.key, err)
		}
		switch {
		case keep && w.key == keyLives:
			out[0] = w
		case keep:
			out = append(out, w)
		}
	}
	return out, nil
}

func restoreKey(w *write, attached map[metadata.TopicID]metadata.Attachment) (keep bool, err error) {
	switch {
	case w.key == keyProducerIDs:
		next, err := strconv.ParseInt(string(w.value), 10, 64)
		w.value = strconv.AppendInt(nil, next+producerIDRaise, 10)
		return true, err
	case w.key == keyLives:
		l, err := decodeLives(w.value)
		if err != nil {
			return false, err
		}
		*w, err = codec{}.encode(setLives{metadata.Lives{LeaderEpoch: raised(l.LeaderEpoch), Barrier: raised(l.Barrier)}})
		return true, err
	case w.key == keyRestored, strings.HasPrefix(w.key, dirBroker):
		return false, nil
	case strings.HasPrefix(w.key, dirAttach):
		if a := metadata.ParseMirrorName(string(w.value)); a.Desired == metadata.DesiredMirroring {
			a.Desired = metadata.DesiredPaused
			w.value = []byte(a.Value())
		}
	case strings.HasPrefix(w.key, dirPartition):
		id, _, err := parsePartKey(strings.TrimPrefix(w.key, dirPartition))
		if err != nil {
			return false, err
		}
		p, err := decodePartition(w.value)
		if err != nil {
			return false, err
		}
		restorePartition(p, attached[id].Desired != metadata.DesiredNone)
		w.value = encodePartition(p)
	case strings.HasPrefix(w.key, dirState):
		id, _, err := parsePartKey(strings.TrimPrefix(w.key, dirState))
		if err != nil {
			return false, err
		}
		s, err := decodeState(w.value)
		if err != nil {
			return false, err
		}
		if attached[id].Desired != metadata.DesiredMirroring || s.Mirror != attached[id].Mirror {
			return true, nil
		}
		if keep = restoreState(s); keep {
			w.value = encodeState(s)
		}
		return keep, nil
	}
	return true, nil
}

func restorePartition(p *metadata.Partition, mirrored bool) {
	p.Leader, p.ISR, p.ELR = metadata.NoLeader, nil, nil
	p.LastKnownELR = slices.Clone(p.Replicas)
	p.LeaderEpoch, p.PartitionEpoch = raised(p.LeaderEpoch), raised(p.PartitionEpoch)
	if mirrored || p.Barrier != 0 {
		p.Barrier = raised(p.Barrier)
	}
}

func raised(epoch int32) int32 { return min(epoch, math.MaxInt32-1-epochRaise) + epochRaise }

// restoreState pauses a partition that was mirrored; one that had not begun to be
// forgets what it did, and begins anew.
func restoreState(s *metadata.MirrorPartition) (keep bool) {
	from := s.State
	if from == metadata.StateFailed {
		from = s.RetryTarget()
	}
	if from == metadata.StatePreparing {
		return false
	}
	s.State, s.PreviousState = metadata.StatePaused, metadata.StateUnknown
	s.StateEpoch++
	s.ErrorMessage, s.RetryAttempt = "", 0
	return true
}

// put writes the metadata into a store in which there is no cluster. It may be called
// again, and by several nodes at once.
func (b *Backup) put(ctx context.Context, client *clientv3.Client) error {
	keys, err := b.restored()
	if err != nil {
		return err
	}
	unfounded := clientv3.Compare(clientv3.CreateRevision(keyFormat), "=", 0)
	ours := clientv3.Compare(clientv3.Value(keyRestoring), "=", b.ID)
	txn := func(compares []clientv3.Cmp, ops ...clientv3.Op) (bool, error) {
		resp, err := client.Txn(ctx).If(compares...).Then(ops...).Commit()
		if err != nil {
			return false, fmt.Errorf("write metadata: %w", err)
		}
		return resp.Succeeded, nil
	}
	if _, err := txn([]clientv3.Cmp{unfounded, clientv3.Compare(clientv3.CreateRevision(keyRestoring), "=", 0)}, clientv3.OpPut(keyRestoring, b.ID)); err != nil {
		return err
	}
	var p pack
	for _, w := range keys {
		p.add([]write{w})
	}
	p.open()
	for i, writes := range p.txns {
		ops := make([]clientv3.Op, 0, len(writes)+3)
		for _, w := range writes {
			ops = append(ops, clientv3.OpPut(w.key, string(w.value)))
		}
		if i == len(p.txns)-1 {
			ops = append(ops, clientv3.OpPut(keyRestored, b.ID), clientv3.OpPut(keyFormat, strconv.Itoa(formatVersion)), clientv3.OpDelete(keyRestoring))
		}
		if ok, err := txn([]clientv3.Cmp{unfounded, ours}, ops...); err != nil {
			return err
		} else if !ok {
			return b.checkRestored(ctx, client)
		}
	}
	return nil
}

// checkRestored tells whether it was this backup that somebody else has restored.
func (b *Backup) checkRestored(ctx context.Context, client *clientv3.Client) error {
	resp, err := client.Txn(ctx).Then(clientv3.OpGet(keyRestored), clientv3.OpGet(keyRestoring)).Commit()
	if err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	for _, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			if string(kvs[0].Value) == b.ID {
				return nil
			}
			return fmt.Errorf("%w: backup %s is restored there, this is %s", ErrNotEmpty, kvs[0].Value, b.ID)
		}
	}
	return fmt.Errorf("%w: a cluster was founded there", ErrNotEmpty)
}

// Restore founds a cluster with a backup, as o is configured. With an etcd of the
// operator's it is done when it returns; else this controller will do it when it is
// started, together with the others.
func Restore(ctx context.Context, o Options, file []byte) (_ *Backup, staged bool, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, false, err
	}
	b, err := DecodeBackup(file)
	if err != nil {
		return nil, false, err
	}
	if err := b.checkSecret(o); err != nil {
		return nil, false, err
	}
	if o.External != nil {
		return b, false, b.restoreExternal(ctx, o)
	}
	if o.BrokerOnly {
		return nil, false, errors.New("this node holds no metadata (process.roles): restore on the controllers")
	}
	return b, true, b.stage(ctx, o, file)
}

// checkSecret refuses a backup of a cluster with another secret: nobody of this one
// could work with it.
func (b *Backup) checkSecret(o Options) error {
	i := slices.IndexFunc(b.keys, func(w write) bool { return keyRoot+w.key == keySecret })
	if i < 0 {
		return nil
	}
	if o.Secret == "" {
		return errors.New("cluster.secret: is not set, and the backup is of a cluster that has one: set it as it was")
	}
	seal, err := o.sealer()
	if err != nil {
		return err
	}
	if string(b.keys[i].value) != seal.fingerprint {
		return fmt.Errorf("cluster.secret: is not the one of the cluster that was backed up (%s, not %s)", seal.fingerprint, b.keys[i].value)
	}
	return nil
}

func (b *Backup) restoreExternal(ctx context.Context, o Options) error {
	e, err := dialStore(ctx, o, nil)
	if err != nil {
		return err
	}
	defer e.close()
	resp, err := e.client.Get(ctx, keyRoot, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	if len(resp.Kvs) > 0 {
		begun, err := e.client.Get(ctx, keyRestoring)
		if err != nil {
			return fmt.Errorf("read metadata: %w", err)
		}
		if len(begun.Kvs) == 0 || string(begun.Kvs[0].Value) != b.ID {
			return fmt.Errorf("%w: %v has keys under %q; a backup is restored where there are none", ErrNotEmpty, o.External.Endpoints, o.External.Prefix+keyRoot)
		}
	}
	return b.put(ctx, e.client)
}

func (b *Backup) stage(ctx context.Context, o Options, file []byte) error {
	if hasMember(o.Dir) {
		return fmt.Errorf("%w: %s holds a controller's; move it away first if it is not to be used any more, on all controllers", ErrNotEmpty, o.Dir)
	}
	if err := b.askOthers(ctx, o); err != nil {
		return err
	}
	if was, err := readStaged(o.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if was != nil && was.ID != b.ID {
		return fmt.Errorf("%w: %s waits to be restored, it is another backup (%s); remove it first", ErrNotEmpty, filepath.Join(o.Dir, stagedFile), was.ID)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("metadata directory: %w", err)
	}
	return WriteFile(filepath.Join(o.Dir, stagedFile), file)
}

// askOthers refuses if one of the other controllers that can be reached is in a
// cluster that works.
func (b *Backup) askOthers(ctx context.Context, o Options) error {
	others := o.others()
	if len(others) == 0 {
		return nil
	}
	seal, err := o.sealer()
	if err != nil {
		return err
	}
	id, err := newIdentity(seal.secret, o.NodeID, o.Rand)
	if err != nil {
		return err
	}
	nodes := newNodes(id)
	defer nodes.close()
	for _, addr := range others {
		var a identifyAnswer
		try, cancel := context.WithTimeout(ctx, identifyTimeout)
		err := nodes.call(try, addr, "Identify", &identifyCall{o.NodeID}, &a)
		cancel()
		switch {
		case err != nil: // it does not run, which is as it should be
		case a.Member:
			return fmt.Errorf("%w: the controller at %s is in cluster %s, which works: this node can join it", ErrNotEmpty, addr, a.ClusterID)
		case !a.Fresh:
			return fmt.Errorf("%w: the controller at %s has some, and waits for the majority of its cluster", ErrNotEmpty, addr)
		}
	}
	return nil
}

// WriteFile writes a file whole or not at all, for its owner only.
func WriteFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readStaged answers the backup that waits in a metadata directory.
func readStaged(dir string) (*Backup, error) {
	path := filepath.Join(dir, stagedFile)
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, err := DecodeBackup(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// openStaged notes what waits to be restored, before other nodes ask.
func (c *Controller) openStaged() error {
	if c.o.Dir == "" || c.o.remote() {
		return nil
	}
	b, err := readStaged(c.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c.staged = b
	return err
}

// restore founds the cluster with the staged backup, if there is one, and waits for
// the node that has it, if another one does.
func (c *Controller) restore(ctx context.Context) error {
	if c.etcd.member == nil {
		return nil
	}
	path := filepath.Join(c.o.Dir, stagedFile)
	if b := c.staged; b != nil {
		err := b.put(ctx, c.etcd.client)
		switch {
		case err == nil:
			c.o.Logger.Info("metadata is restored", "backup", b.ID, "cluster_id", b.ClusterID, "revision", b.Revision, "taken", b.Taken, "keys", len(b.keys))
			return removeFile(path)
		case errors.Is(err, ErrNotEmpty):
			c.o.Logger.Warn("a backup that waited to be restored is not used: this controller is in a cluster that has metadata", "file", path+".unused", "error", err)
			return os.Rename(path, path+".unused")
		}
		return err
	}
	for foundingRestores(c.o.Dir) {
		resp, err := c.etcd.client.Get(ctx, keyFormat)
		if err != nil {
			return fmt.Errorf("read metadata: %w", err)
		}
		if len(resp.Kvs) > 0 {
			return nil
		}
		if pause(ctx, c.o.Clock, formationPause); ctx.Err() != nil {
			return fmt.Errorf("the controller that has the backup did not restore it: %w", ctx.Err())
		}
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("metadata directory: %w", err)
	}
	return nil
}

// stagedID is the id of the backup that waits here, empty if none does.
func (c *Controller) stagedID() string {
	if c.staged == nil {
		return ""
	}
	return c.staged.ID
}
