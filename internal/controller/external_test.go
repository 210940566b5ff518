package controller

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	externalDir  = "LOCKSTEP_TEST_ETCD"
	externalAddr = "LOCKSTEP_TEST_ETCD_ADDR"
)

// external is the process of an operator's etcd, with TLS, until it is killed.
func external(dir, addr string) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir+"/etcd", "error"
	u, peer := url.URL{Scheme: "https", Host: addr}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{u}, []url.URL{u}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: dir + "/node.pem", KeyFile: dir + "/node.key", TrustedCAFile: dir + "/authority.pem", ClientCertAuth: true}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	<-e.Server.ReadyNotify()
	fmt.Println("ready")
	<-e.Server.StopNotify()
}

func startExternal(t *testing.T, dir, addr string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), externalDir+"="+dir, externalAddr+"="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopExternal(cmd) })
	if lines := bufio.NewScanner(out); !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("etcd: %q, %v", lines.Text(), lines.Err())
	}
	return cmd
}

func stopExternal(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may be dead
	_ = cmd.Wait()
}

// operatorCertificates writes what etcd needs to dir, and answers what its clients do.
func operatorCertificates(t *testing.T, dir string) *tls.Config {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: validFrom, NotAfter: validUntil, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	authority, err := certificate(rand.Reader, root, root, public, private)
	if err != nil {
		t.Fatal(err)
	}
	host := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: validFrom, NotAfter: validUntil, KeyUsage: x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	leaf, err := certificate(rand.Reader, host, authority, public, private)
	if err != nil {
		t.Fatal(err)
	}
	id := &identity{authority: authority, pool: x509.NewCertPool(), leaf: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: private}}
	if _, _, _, err := id.files(dir); err != nil {
		t.Fatal(err)
	}
	id.pool.AddCert(authority)
	return &tls.Config{RootCAs: id.pool, Certificates: []tls.Certificate{id.leaf}, MinVersion: tls.VersionTLS12}
}

// TestExternalEtcd keeps the metadata in an etcd of the operator's, another process
// with TLS and passwords, beside keys of somebody else. Two controllers without any
// metadata of their own elect one of them; etcd dies and comes back; the active one
// goes, and the other follows.
func TestExternalEtcd(t *testing.T) {
	dir, addr := t.TempDir(), freeAddr(t)
	tlsConfig := operatorCertificates(t, dir)
	etcd := startExternal(t, dir, addr)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: tlsConfig, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(root.Put(t.Context(), "lockstep/cluster", "somebody else's"))
	must(root.UserAdd(t.Context(), "root", "pw"))
	must(root.RoleAdd(t.Context(), "root"))
	must(root.UserGrantRole(t.Context(), "root", "root"))
	must(root.AuthEnable(t.Context()))

	w := newTestCluster(t, 0)
	options := func(node int32) Options {
		o := w.options(node)
		o.Dir = "" // nothing of it is here
		o.Listen = freeAddr(t)
		o.Advertised = o.Listen
		o.External = &External{Endpoints: []string{"https://" + addr}, TLS: tlsConfig, Username: "root", Password: "pw", Prefix: "site-a/"}
		return o
	}
	wrong := options(9)
	wrong.External.Password = "not it"
	if c, err := Open(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("a wrong password: %v, %v", c, err)
	}
	w.start(options(1), options(2))
	active, other := w.leader()
	w.broker(other, 1)
	create(t, other, "orders", 200)
	wrong = options(9)
	wrong.Secret = "another secret, as long"
	if _, err := Open(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "cluster.secret") {
		t.Errorf("another secret: %v", err)
	}

	stopExternal(etcd)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	if r := other.CreateTopics(short, []CreateTopic{{Name: "nowhere"}}, false); r[0].Err == nil {
		t.Error("a topic was created without a store")
	}
	cancel()
	startExternal(t, dir, addr)
	create(t, other, "again", 1)

	w.stop(active.o.NodeID)
	create(t, other, "after", 1)
	if !other.Leading() || other.Image().Topic("orders") == nil || other.Image().ClusterID == "somebody else's" {
		t.Errorf("leading %v\n%s", other.Leading(), show(other.Image()))
	}
	// A backup goes into another corner of the same etcd, where there is nothing yet.
	b, err := TakeBackup(t.Context(), options(3))
	if err != nil {
		t.Fatal(err)
	}
	file, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), options(3), file); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restored over what is there: %v", err)
	}
	elsewhere := func(node int32) Options {
		o := options(node)
		o.External.Prefix = "site-b/"
		return o
	}
	user, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + addr}, TLS: tlsConfig, DialTimeout: 10 * time.Second, Username: "root", Password: "pw"})
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	must(user.Put(t.Context(), "site-b/"+keyRestoring, b.ID)) // one that was cut short is gone on with
	if c, err := Open(t.Context(), elsewhere(4)); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("half a restore: %v, %v", c, err)
	}
	for range 2 {
		if _, staged, err := Restore(t.Context(), elsewhere(4), file); (err != nil || staged) && !errors.Is(err, ErrNotEmpty) {
			t.Fatal(err)
		}
	}
	w.start(elsewhere(4))
	if img := w.nodes[4].Image(); img.Topic("orders") == nil || img.Topic("after") == nil || img.ClusterID != other.Image().ClusterID || img.Restored != b.ID {
		t.Errorf("restored:\n%s", show(img))
	}
	if conn, err := net.Dial("tcp", active.o.Advertised); err == nil {
		conn.Close()
		t.Error("a closed controller still listens")
	}
}
