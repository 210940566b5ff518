package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Backup is the metadata of a cluster at one revision, as keys and values of the
// store: secrets in it are as sealed as they are there. It can be restored into
// another etcd, and by another number of controllers.
//
// As a file it is JSON, one object a line, first the head, then the keys in order,
// last the sum of all that is before it:
//
//	{"lockstep":"metadata backup","version":1,"format":1,"cluster_id":…,"revision":…,"taken":…,"keys":…}
//	{"k":"topic/…","v":<base64>}
//	{"sha256":…}
type Backup struct {
	ClusterID string
	Revision  int64
	Taken     time.Time
	// ID is what its file has as its sum, shortened: the same file, the same id.
	ID string

	keys []write // without keyRoot
}

// ErrBadBackup is a file that is none, or is not whole.
var ErrBadBackup = errors.New("not a whole backup of metadata")

const (
	backupKind    = "metadata backup"
	backupVersion = 1
	backupIDBytes = 8
	// maxBackupLine bounds a line: a value is at most maxTxnBytes, in base64.
	maxBackupLine = 2 * maxTxnBytes
)

type (
	backupHead struct {
		Lockstep  string    `json:"lockstep"`
		Version   int       `json:"version"`
		Format    int       `json:"format"`
		ClusterID string    `json:"cluster_id"`
		Revision  int64     `json:"revision"`
		Taken     time.Time `json:"taken"`
		Keys      int       `json:"keys"`
	}
	backupKey struct {
		K string `json:"k"`
		V []byte `json:"v"`
	}
	backupTail struct {
		SHA256 string `json:"sha256"`
	}
)

// inBackup tells whether a key is the cluster's, and not of a controller at work.
func inBackup(key string) bool {
	return key != keyChain && key != keyFormat && !isElectionKey(key)
}

// TakeBackup reads the metadata of the cluster that o is a node of: from its
// controllers, from an etcd of the operator's, or, of a single node that no other
// process can reach, from its directory while it is stopped.
func TakeBackup(ctx context.Context, o Options) (*Backup, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	seal, err := o.sealer()
	if err != nil {
		return nil, err
	}
	e, err := openForBackup(ctx, o, seal)
	if err != nil {
		return nil, err
	}
	b, err := readBackup(ctx, e.client, codec{seal}, o.Clock.Now())
	return b, errors.Join(err, e.close())
}

func openForBackup(ctx context.Context, o Options, seal *sealer) (*store, error) {
	if len(o.controllers()) == 0 && o.Advertised != "" {
		o.Bootstrap = []string{o.Advertised}
	}
	switch {
	case o.External != nil:
		return dialStore(ctx, o, nil)
	case len(o.controllers()) > 0:
		id, err := newIdentity(seal.secret, o.NodeID, o.Rand)
		if err != nil {
			return nil, err
		}
		return dialStore(ctx, o, id)
	case o.ClientListen != "":
		o.External = &External{Endpoints: []string{"http://" + o.ClientListen}}
		return dialStore(ctx, o, nil)
	case !hasMember(o.Dir):
		return nil, fmt.Errorf("there is no metadata in %s", o.Dir)
	}
	e, err := startMember(ctx, o, formation{}, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%w; the metadata of a single node without a controller listener can be read while it is stopped, or with metadata.etcd.listen.client", err)
	}
	return e, nil
}

// backupTries is how often everything is read when history is compacted meanwhile.
const backupTries = 3

func readBackup(ctx context.Context, client *clientv3.Client, c codec, now time.Time) (*Backup, error) {
	for try := 1; ; try++ {
		b, err := readBackupOnce(ctx, client, c)
		if err == nil {
			b.Taken = now.UTC().Truncate(time.Second)
			return b, nil
		}
		if try == backupTries || !errors.Is(err, rpctypes.ErrCompacted) {
			return nil, err
		}
	}
}

func readBackupOnce(ctx context.Context, client *clientv3.Client, c codec) (*Backup, error) {
	b := new(Backup)
	founded := false
	err := readStore(ctx, client, func(kv *mvccpb.KeyValue, revision int64) error {
		key, value := string(kv.Key), present(kv.Value)
		b.Revision = revision
		if _, err := c.decode(key, value, kv.ModRevision); err != nil {
			return err // a backup that cannot be restored is none
		}
		switch key {
		case keyFormat:
			founded = true
		case keyCluster:
			b.ClusterID = string(value)
		}
		if inBackup(key) {
			b.keys = append(b.keys, write{strings.TrimPrefix(key, keyRoot), value})
		}
		return nil
	})
	if err == nil && (!founded || b.ClusterID == "") {
		err = errors.New("the store holds no cluster")
	}
	return b, err
}

// readStore shows everything in the store, as of one revision.
func readStore(ctx context.Context, client *clientv3.Client, fn func(kv *mvccpb.KeyValue, revision int64) error) error {
	revision, key, end := int64(0), keyRoot, clientv3.GetPrefixRangeEnd(keyRoot)
	for {
		resp, err := client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(readPageLimit))
		if err != nil {
			return fmt.Errorf("read metadata: %w", err)
		}
		if revision == 0 {
			revision = resp.Header.Revision // all pages show this one
		}
		for _, kv := range resp.Kvs {
			if err := fn(kv, revision); err != nil {
				return fmt.Errorf("read metadata: %w", err)
			}
		}
		if !resp.More {
			return nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Encode answers the backup as a file, and sets its ID.
func (b *Backup) Encode() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	err := enc.Encode(backupHead{backupKind, backupVersion, formatVersion, b.ClusterID, b.Revision, b.Taken, len(b.keys)})
	for _, w := range b.keys {
		if err == nil {
			err = enc.Encode(backupKey{w.key, w.value})
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	sum := sha256.Sum256(out.Bytes())
	b.ID = hex.EncodeToString(sum[:backupIDBytes])
	if err := enc.Encode(backupTail{hex.EncodeToString(sum[:])}); err != nil {
		return nil, fmt.Errorf("write backup: %w", err)
	}
	return out.Bytes(), nil
}

// DecodeBackup reads a backup's file, and answers ErrBadBackup unless every byte of
// it is as it was written.
func DecodeBackup(file []byte) (*Backup, error) {
	bad := func(format string, args ...any) (*Backup, error) {
		return nil, fmt.Errorf("%w: "+format, append([]any{ErrBadBackup}, args...)...)
	}
	var head backupHead
	first, rest, _ := bytes.Cut(file, []byte("\n"))
	if len(first) > maxBackupLine || json.Unmarshal(first, &head) != nil || head.Lockstep != backupKind {
		return bad("it does not begin as one")
	}
	if head.Version != backupVersion || head.Format != formatVersion {
		return nil, fmt.Errorf("backup of version %d, metadata format %d: this binary reads version %d, format %d", head.Version, head.Format, backupVersion, formatVersion)
	}
	at := bytes.LastIndexByte(bytes.TrimSuffix(file, []byte("\n")), '\n') + 1
	var tail backupTail
	if strictJSON(bytes.TrimSuffix(file[at:], []byte("\n")), &tail) != nil || tail.SHA256 == "" {
		return bad("its end is missing")
	}
	sum := sha256.Sum256(file[:at])
	if hex.EncodeToString(sum[:]) != tail.SHA256 {
		return bad("its sum is %x, not %s", sum, tail.SHA256)
	}
	b := &Backup{ClusterID: head.ClusterID, Revision: head.Revision, Taken: head.Taken, ID: tail.SHA256[:2*backupIDBytes]}
	for line := range bytes.Lines(rest[:at-len(first)-1]) {
		var k backupKey
		if err := strictJSON(line, &k); err != nil {
			return bad("line %d: %v", len(b.keys)+2, err)
		}
		b.keys = append(b.keys, write{k.K, present(k.V)})
	}
	if len(b.keys) != head.Keys {
		return bad("it has %d keys, not %d", len(b.keys), head.Keys)
	}
	return b, nil
}

func strictJSON(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// image is the cluster that the backup describes.
func (b *Backup) image(c codec) (*metadata.Image, error) {
	var changes []Change
	for _, w := range b.keys {
		ch, err := c.decode(keyRoot+w.key, w.value, b.Revision)
		if err != nil {
			return nil, fmt.Errorf("backup: %w", err)
		}
		if ch != nil {
			changes = append(changes, ch)
		}
	}
	builder := newBuilder(metadata.NewImage())
	if err := builder.apply(changes, b.Revision); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return builder.seal(b.Revision), nil
}

// BackupContents counts what a backup holds.
type BackupContents struct {
	Topics, Partitions, Mirrors, Users, ACLs int
	// Paused are topics whose mirroring is paused by a restore.
	Paused []string
	// Sealed are the mirrors and users of which a secret does not open with this
	// node's key.
	Sealed []string
}

// Contents counts what the backup holds, as a node with o's key sees it.
func (b *Backup) Contents(o Options) (*BackupContents, error) {
	o.EnsureDefaults()
	seal, err := o.sealer()
	if err != nil {
		return nil, err
	}
	img, err := b.image(codec{seal})
	if err != nil {
		return nil, err
	}
	n := &BackupContents{Topics: img.NumTopics(), ACLs: img.NumACLs(), Mirrors: len(img.Mirrors())}
	for t := range img.AllTopics() {
		n.Partitions += len(t.Partitions)
		if t.Attachment().Desired == metadata.DesiredMirroring {
			n.Paused = append(n.Paused, t.Name)
		}
	}
	for _, m := range img.Mirrors() {
		if len(m.Unopened) > 0 {
			n.Sealed = append(n.Sealed, "mirror "+m.Name)
		}
	}
	for _, s := range img.ScramCredentials() {
		n.Users++
		if len(s.StoredKey) == 0 {
			n.Sealed = append(n.Sealed, "user "+s.User)
		}
	}
	return n, nil
}
