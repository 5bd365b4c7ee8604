package controllers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/cluster"
)

// The control plane that all tests of the operator share: a real API server with the real StatefulSet, quota and garbage
// collection controllers. It has no kubelet; the tests play it, and the workers too.
var shared struct {
	once         sync.Once
	err          error
	controlPlane *cluster.ControlPlane
	client       client.Client
	stop         context.CancelFunc
	operator     *operator
}

const testImage = "shardedjob.dev/shardedjob:test"

func TestMain(m *testing.M) {
	ctrl.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(logFile())))
	code := m.Run()
	if shared.controlPlane != nil {
		shared.stop()
		if shared.operator != nil {
			shared.operator.stop()
		}
		if err := shared.controlPlane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// logFile is where OPERATOR_LOG asks for the operator's log, for looking into a failure.
func logFile() *os.File {
	path := os.Getenv("OPERATOR_LOG")
	if path == "" {
		path = os.DevNull
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	utilruntime.Must(err)
	return file
}

func testScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

func startShared() error {
	ctx, cancel := context.WithCancel(context.Background())
	shared.stop = cancel
	var err error
	if shared.controlPlane, err = cluster.StartControlPlane(ctx, cluster.Options{CRDs: []string{filepath.Join("..", "config", "crd", "bases")}}); err != nil {
		return err
	}
	if shared.client, err = client.New(shared.controlPlane.Config(), client.Options{Scheme: testScheme()}); err != nil {
		return err
	}
	if err := installRole(ctx); err != nil {
		return err
	}
	shared.operator, err = startOperator(testImage)
	return err
}

// installRole gives the user "operator" what the manifests give the operator, and nothing more.
func installRole(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	if err != nil {
		return err
	}
	var role rbacv1.ClusterRole
	if err := yaml.Unmarshal(raw, &role); err != nil {
		return err
	}
	if err := shared.client.Create(ctx, &role); err != nil {
		return err
	}
	return shared.client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "operator"}},
	})
}

// operator is a running manager.
type operator struct {
	cancel  context.CancelFunc
	done    chan error
	elected <-chan struct{}
	writes  *writeCounter
}

// writeCounter counts what the operator writes, by namespace.
type writeCounter struct {
	next   http.RoundTripper
	total  atomic.Int64
	counts sync.Map
}

func (c *writeCounter) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		c.total.Add(1)
		if _, rest, ok := strings.Cut(req.URL.Path, "/namespaces/"); ok {
			namespace, what, _ := strings.Cut(rest, "/")
			list, _ := c.counts.LoadOrStore(namespace, &writeList{})
			list.(*writeList).add(req.Method + " " + what)
		}
	}
	return c.next.RoundTrip(req)
}

type writeList struct {
	mu    sync.Mutex
	items []string
}

func (l *writeList) add(item string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, item)
}

// of returns what was written to the namespace so far.
func (c *writeCounter) of(namespace string) []string {
	list, ok := c.counts.Load(namespace)
	if !ok {
		return nil
	}
	l := list.(*writeList)
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.items...)
}

// startOperator starts an operator that serves all namespaces, unless change makes another of it.
func startOperator(image string, change ...func(*rest.Config, *ctrl.Options)) (*operator, error) {
	cfg := shared.controlPlane.Config()
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "operator"}
	o := &operator{done: make(chan error, 1), writes: &writeCounter{}}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		o.writes.next = next
		return o.writes
	})
	options := ManagerOptions(nil)
	options.Scheme = testScheme()
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller = config.Controller{SkipNameValidation: ptr.To(true)}
	for _, c := range change {
		c(cfg, &options)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, err
	}
	if err := Add(mgr, image); err != nil {
		return nil, err
	}
	o.elected = mgr.Elected()
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	go func() { o.done <- mgr.Start(ctx) }()
	return o, nil
}

func (o *operator) stop() {
	o.cancel()
	if err := <-o.done; err != nil {
		fmt.Fprintln(os.Stderr, "the operator ended with:", err)
	}
}

// restart ends the operator and starts another with the given image. Other tests go on meanwhile: that is what the
// operator promises.
func restart(g *WithT, image string) {
	shared.operator.stop()
	next, err := startOperator(image)
	g.Expect(err).NotTo(HaveOccurred())
	shared.operator = next
}
