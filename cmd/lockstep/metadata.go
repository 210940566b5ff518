package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/controller"
)

// metadataTimeout bounds a backup or a restore.
const metadataTimeout = 5 * time.Minute

func newMetadataCommand() *cobra.Command {
	var file string
	var overrides []string
	c := &cobra.Command{
		Use:   "metadata",
		Short: "Back up and restore a cluster's metadata",
		Long: `Back up and restore a cluster's metadata: topics, where their replicas are, configs,
mirrors, users, ACLs and quotas. Records, group offsets and transactions are not
metadata; they are in the logs.

backup reads the metadata of a running cluster at one revision, through the
controllers' port or from the etcd that metadata.etcd.endpoints names. A single node
without either is backed up while it is stopped. Passwords and keys stay sealed: keep
cluster.secret, or the file cluster.key, elsewhere; without it they are lost.

restore founds a cluster with a backup, where there is no metadata: it refuses a
controller that has some, and an etcd that has keys. Run it with the same file on all
controllers, and start them; with an etcd of your own run it once. The brokers keep
their logs. The replica of each partition that has the newest log leads, when all of
them are there; mirrors are paused. Topics that were created after the backup are not
in it: their logs are kept and named in the server's log.`,
		Example: `  lockstep metadata backup /backup/cluster-2026-11-30 --config server.properties
  lockstep metadata restore /backup/cluster-2026-11-30 --config server.properties`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&file, "config", "", "properties file of a node of the cluster")
	c.PersistentFlags().StringArrayVar(&overrides, "override", nil, "key=value that wins over the file; may be repeated")
	with := func(fn func(ctx context.Context, out io.Writer, cfg *config.Config, o controller.Options, path string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(file, overrides)
			if err != nil {
				return usageError{err}
			}
			dir, err := filepath.Abs(cfg.MetadataDir())
			if err != nil {
				return err
			}
			o := controller.Options{Dir: filepath.Join(dir, "metadata")}
			if err := cfg.Quorum(&o); err != nil {
				return usageError{err}
			}
			ctx, cancel := context.WithTimeout(c.Context(), metadataTimeout)
			defer cancel()
			return fn(ctx, c.OutOrStdout(), cfg, o, args[0])
		}
	}
	oneFile := func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("metadata: %s wants one argument, FILE", c.Name())}
		}
		return nil
	}
	c.AddCommand(
		&cobra.Command{Use: "backup FILE", Short: "Write a running cluster's metadata to a new file", Args: oneFile, RunE: with(backupMetadata)},
		&cobra.Command{Use: "restore FILE", Short: "Found a cluster with the metadata in a file", Args: oneFile, RunE: with(restoreMetadata)},
	)
	return c
}

func backupMetadata(ctx context.Context, out io.Writer, _ *config.Config, o controller.Options, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists: a backup is not overwritten", path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b, err := controller.TakeBackup(ctx, o)
	if err != nil {
		return err
	}
	data, err := b.Encode()
	if err != nil {
		return err
	}
	if err := controller.WriteFile(path, data); err != nil {
		return err
	}
	return describeBackup(out, "backed up", b, o)
}

func restoreMetadata(ctx context.Context, out io.Writer, cfg *config.Config, o controller.Options, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b, err := controller.DecodeBackup(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	nodeID := int32(cfg.Int("node.id"))
	if err := checkRestore(cfg, b.ClusterID, nodeID); err != nil {
		return err
	}
	b, staged, err := controller.Restore(ctx, o, data)
	if err != nil {
		return err
	}
	if err := claimRestored(cfg, b.ClusterID, nodeID); err != nil {
		return err
	}
	verb := "restored"
	if staged {
		verb = "ready to be restored when the controllers are started, all of them with this file"
	}
	if err := describeBackup(out, verb, b, o); err != nil {
		return err
	}
	n, err := b.Contents(o)
	if err != nil || len(n.Paused) == 0 {
		return err
	}
	_, err = fmt.Fprintf(out, "mirroring of these topics will be paused, resume it if they were not failed over since: %s\n", strings.Join(n.Paused, ", "))
	return err
}

func describeBackup(out io.Writer, what string, b *controller.Backup, o controller.Options) error {
	n, err := b.Contents(o)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: backup %s of cluster %s at revision %d, %s: %d topics with %d partitions, %d mirrors, %d users, %d ACLs\n",
		what, b.ID, b.ClusterID, b.Revision, b.Taken.Format(time.RFC3339), n.Topics, n.Partitions, n.Mirrors, n.Users, n.ACLs)
	if err == nil && len(n.Sealed) > 0 {
		_, err = fmt.Fprintf(out, "secrets that this node's key does not open: %s\n", strings.Join(n.Sealed, ", "))
	}
	return err
}

// checkRestore refuses a node whose directories belong to another cluster or node.
func checkRestore(cfg *config.Config, clusterID string, nodeID int32) error {
	for _, dir := range append(cfg.LogDirs(), cfg.MetadataDir()) {
		m, err := readMetaProperties(dir)
		switch {
		case err != nil:
			return err
		case m == nil:
		case m.nodeID != nodeID:
			return fmt.Errorf("node.id is %d, but %s belongs to node %d", nodeID, filepath.Join(dir, metaPropertiesFile), m.nodeID)
		case m.clusterID != clusterID:
			return fmt.Errorf("%s belongs to cluster %s, the backup is of %s", filepath.Join(dir, metaPropertiesFile), m.clusterID, clusterID)
		}
	}
	return nil
}

// claimRestored gives a metadata directory its name that was lost with what was in it,
// and the log directories with theirs: a server does not start with logs that it does
// not know.
func claimRestored(cfg *config.Config, clusterID string, nodeID int32) error {
	dir, err := filepath.Abs(cfg.MetadataDir())
	if err != nil {
		return err
	}
	if m, err := readMetaProperties(dir); err != nil || m != nil {
		return err
	}
	m := &metaProperties{clusterID: clusterID, nodeID: nodeID, directoryID: newDirectoryID(), logDirs: map[string]string{}}
	if cfg.IsBroker() {
		for _, path := range cfg.LogDirs() {
			path, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			if log, err := readMetaProperties(path); err != nil {
				return err
			} else if log != nil && log.directoryID != "" {
				m.logDirs[log.directoryID] = path
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeMetaProperties(dir, m)
}
