package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Options of a control plane. The zero value is good.
type Options struct {
	// CRDs are files or folders of CustomResourceDefinitions, installed before the controllers start: so the
	// garbage collector knows their kinds at once, where it else looks for new ones every 30 s only.
	CRDs []string
	// Progress is told how far the build of the servers is, where there is one. Default: os.Stderr.
	Progress io.Writer
}

// ControlPlane is a running etcd, API server and controller manager.
type ControlPlane struct {
	dir        string
	host       string // the address that the API server listens on
	port       int
	node       bool // it belongs to a node: it goes on after us, and pods must reach it
	ca         *authority
	kubeconfig string
	config     *rest.Config

	etcd, apiserver, controllers *process
}

// startTimeout bounds each server's start: a machine that is busy with tests needs tens of seconds.
const startTimeout = 2 * time.Minute

// StartControlPlane starts etcd, kube-apiserver and kube-controller-manager (all of its default controllers) on
// 127.0.0.1 with RBAC and pod security admission, in a temporary folder of their own, and returns when a pod can be
// created in the namespace default. Stop it when done; if this process ends in another way, the servers end
// with it. It takes about five seconds, and ten minutes the very first time (see EnsureBinary).
//
// There is no scheduler and no kubelet: pods stay Pending until a test writes their status. Leave spec.nodeName
// empty: the pod garbage collector deletes pods of nodes that do not exist.
func StartControlPlane(ctx context.Context, options Options) (*ControlPlane, error) {
	if options.Progress == nil {
		options.Progress = os.Stderr
	}
	binary, err := EnsureBinary(ctx, options.Progress)
	if err != nil {
		return nil, err
	}
	sweep()
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the folder of the control plane: %w", err)
	}
	if err := markOwned(dir); err != nil {
		return nil, err
	}
	cp := &ControlPlane{dir: dir, host: "127.0.0.1"}
	if err := cp.start(ctx, binary, options.CRDs); err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

// start prepares the folder and starts the servers in their order.
func (cp *ControlPlane) start(ctx context.Context, binary string, crds []string) (err error) {
	if cp.ca, err = newAuthority(filepath.Join(cp.dir, "pki")); err != nil {
		return err
	}
	if err := cp.ca.issue("apiserver", "kube-apiserver", []string{"system:masters"}, cp.host, "localhost", firstServiceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"); err != nil {
		return err
	}
	cp.etcd = cp.server("etcd", binary, cp.etcdArgs())
	if err := cp.run(ctx, cp.etcd, func(context.Context) error { return dialUnix(cp.etcdSocket()) }); err != nil {
		return err
	}
	if err := cp.startFirstAPIServer(ctx, binary); err != nil {
		return err
	}
	if len(crds) > 0 {
		if _, err := envtest.InstallCRDs(cp.Config(), envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true}); err != nil {
			return fmt.Errorf("install CRDs: %w", err)
		}
	}
	if err := cp.ca.writeKubeconfig(cp.ca.path("controllers.kubeconfig"), cp.url(), "controllers", "system:kube-controller-manager"); err != nil {
		return err
	}
	cp.controllers = cp.server("kube-controller-manager", binary, cp.controllerArgs())
	// The account is what the API server wants to see before it lets a pod in.
	return cp.run(ctx, cp.controllers, func(ctx context.Context) error {
		client, err := kubernetes.NewForConfig(cp.config)
		if err == nil {
			_, err = client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		}
		return err
	})
}

// startFirstAPIServer also finds a port. Another program may take it before the server does: then there is a next try.
func (cp *ControlPlane) startFirstAPIServer(ctx context.Context, binary string) error {
	for try := 1; ; try++ {
		port, err := freePort(cp.host)
		if err != nil {
			return err
		}
		cp.port = port
		cp.kubeconfig = filepath.Join(cp.dir, "kubeconfig")
		if err := cp.ca.writeKubeconfig(cp.kubeconfig, cp.url(), "admin", "admin", "system:masters"); err != nil {
			return err
		}
		if cp.config, err = loadConfig(cp.kubeconfig); err != nil {
			return err
		}
		cp.apiserver = cp.server("kube-apiserver", binary, cp.apiserverArgs())
		if err = cp.StartAPIServer(ctx); err == nil {
			return nil
		}
		if try == 3 || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
}

func (cp *ControlPlane) server(name, binary string, args []string) *process {
	return &process{name: name, path: binary, args: args, dir: cp.dir, detached: cp.node}
}

func (cp *ControlPlane) run(ctx context.Context, p *process, ready func(context.Context) error) error {
	if err := p.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.awaitReady(ctx, ready)
}

func (cp *ControlPlane) url() string {
	return "https://" + net.JoinHostPort(cp.host, strconv.Itoa(cp.port))
}
func (cp *ControlPlane) etcdSocket() string { return filepath.Join(cp.dir, "etcd.sock") }

// etcdArgs: its data need not outlive the machine, so it never waits for the disk. It listens on a socket in our folder: etcd asks
// nobody who they are. The port for its peers, which it insists on, is any free one.
func (cp *ControlPlane) etcdArgs() []string {
	return []string{
		"--data-dir=" + filepath.Join(cp.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=unix://" + cp.etcdSocket(), "--advertise-client-urls=unix://" + cp.etcdSocket(),
		"--listen-peer-urls=http://127.0.0.1:0",
	}
}

func (cp *ControlPlane) apiserverArgs() []string {
	args := []string{
		"--etcd-servers=unix://" + cp.etcdSocket(),
		"--bind-address=" + cp.host, "--advertise-address=" + cp.host, "--secure-port=" + strconv.Itoa(cp.port),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--tls-cert-file=" + cp.ca.path("apiserver.crt"), "--tls-private-key-file=" + cp.ca.path("apiserver.key"),
		"--client-ca-file=" + cp.ca.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + cp.ca.path("sa.key"), "--service-account-signing-key-file=" + cp.ca.path("sa.key"),
		// The name of a node is in no DNS.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-certificate-authority=" + cp.ca.path("ca.crt"),
		"--kubelet-client-certificate=" + cp.ca.path("apiserver.crt"), "--kubelet-client-key=" + cp.ca.path("apiserver.key"),
	}
	if !cp.node {
		// A service may not point to loopback, and there are no pods to use it.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	return args
}

func (cp *ControlPlane) controllerArgs() []string {
	return []string{
		"--kubeconfig=" + cp.ca.path("controllers.kubeconfig"), "--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
		"--root-ca-file=" + cp.ca.path("ca.crt"), "--service-account-private-key-file=" + cp.ca.path("sa.key"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	}
}

// Config returns a new client configuration for the cluster's administrator, without a limit on requests.
func (cp *ControlPlane) Config() *rest.Config { return rest.CopyConfig(cp.config) }

// Kubeconfig returns the path of a file with the same, for kubectl.
func (cp *ControlPlane) Kubeconfig() string { return cp.kubeconfig }

// Dir returns the folder with the servers' logs.
func (cp *ControlPlane) Dir() string { return cp.dir }

// StartAPIServer starts the API server again after StopAPIServer, at the same address and with the same data, and
// returns when it is ready.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(cp.config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return cp.run(ctx, cp.apiserver, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StopAPIServer ends the API server as a crash does: from then on connections are refused.
func (cp *ControlPlane) StopAPIServer() error { return cp.apiserver.stop(0) }

// PauseAPIServer freezes the API server: connections are accepted and nothing answers, as when a network
// drops packets.
func (cp *ControlPlane) PauseAPIServer() error { return cp.apiserver.signal(syscall.SIGSTOP) }

// ResumeAPIServer undoes PauseAPIServer.
func (cp *ControlPlane) ResumeAPIServer() error { return cp.apiserver.signal(syscall.SIGCONT) }

// Stop ends the servers and removes their folder. It returns when they are gone.
func (cp *ControlPlane) Stop() error {
	var errs []error
	for _, p := range []*process{cp.controllers, cp.apiserver, cp.etcd} {
		if p != nil {
			errs = append(errs, p.stop(0)) // what they would save is about to be removed
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop the control plane: %w", err)
	}
	return os.RemoveAll(cp.dir)
}

func dialUnix(path string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	return conn.Close()
}

// freePort returns a TCP port that was free just now.
func freePort(host string) (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
