package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	cancel context.CancelFunc
	done   chan error
	writes *writeCounter
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

func startOperator(image string) (*operator, error) {
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
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, err
	}
	if err := Add(mgr, image); err != nil {
		return nil, err
	}
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

// place is a namespace with a kubelet and workers that the test plays.
type place struct {
	*WithT
	ctx       context.Context
	client    client.Client
	namespace string

	mu sync.Mutex
	// stuck says why a pod does not get ready, "" if it does.
	stuck func(corev1.Pod) string
	// change alters a report before it is written.
	change func(*v1alpha1.Report)
	// silent workers write no report.
	silent bool
	// last is the last report written, by ConfigMap.
	last map[string]string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	g := NewWithT(t)
	shared.once.Do(func() { shared.err = startShared() })
	g.Expect(shared.err).NotTo(HaveOccurred())
	g.SetDefaultEventuallyTimeout(90 * time.Second)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	p := &place{WithT: g, ctx: t.Context(), client: shared.client, last: map[string]string{}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	g.Expect(p.client.Create(p.ctx, namespace)).To(Succeed())
	p.namespace = namespace.Name
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				p.play(ctx)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

// set changes how kubelet and workers behave.
func (p *place) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// play lets the kubelet and the workers do what is due. Errors are tried again at the next tick.
func (p *place) play(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods corev1.PodList
	var plans corev1.ConfigMapList
	if p.client.List(ctx, &pods, client.InNamespace(p.namespace), client.HasLabels{v1alpha1.LabelJob}) != nil ||
		p.client.List(ctx, &plans, client.InNamespace(p.namespace), client.HasLabels{v1alpha1.LabelJob}) != nil {
		return
	}
	for i := range pods.Items {
		p.playKubelet(ctx, &pods.Items[i])
	}
	if p.silent {
		return
	}
	for _, configMap := range plans.Items {
		if plan, err := v1alpha1.DecodePlan([]byte(configMap.Data[v1alpha1.PlanKey])); err == nil {
			p.playWorkers(ctx, configMap.Labels[v1alpha1.LabelJob], plan, pods.Items)
		}
	}
}

func (p *place) playKubelet(ctx context.Context, pod *corev1.Pod) {
	reason := ""
	if p.stuck != nil {
		reason = p.stuck(*pod)
	}
	status := corev1.ConditionTrue
	if reason != "" {
		status = corev1.ConditionFalse
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == status {
		return
	}
	before := pod.DeepCopy()
	now := metav1.Now()
	if pod.Status.StartTime == nil {
		pod.Status.StartTime = &now
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: status, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: status, LastTransitionTime: now},
	}
	pod.Status.ContainerStatuses = nil
	if reason != "" {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  v1alpha1.WorkerContainer,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "said the kubelet"}},
		}}
	}
	_ = p.client.Status().Patch(ctx, pod, client.MergeFrom(before))
}

func (p *place) playWorkers(ctx context.Context, job string, plan v1alpha1.Plan, pods []corev1.Pod) {
	report := v1alpha1.Report{
		FormatVersion: v1alpha1.ReportFormatVersion, UID: plan.UID, Epoch: plan.Epoch, HighestEpoch: plan.Epoch,
		Slots: plan.Slots, Generation: plan.Generation,
	}
	for i := range pods {
		pod := &pods[i]
		ordinal, ok := ordinalOf(job, pod.Name)
		c := podCondition(pod, corev1.PodReady)
		if !ok || jobUID(pod) != string(plan.UID) || c == nil || c.Status != corev1.ConditionTrue {
			continue
		}
		if report.Coordinator == "" {
			report.Coordinator = pod.Name
		}
		if ordinal < plan.Slots {
			report.SlotCounts.Working++
		}
	}
	if report.Coordinator == "" {
		return
	}
	report.SlotCounts.Unheld = plan.Slots - report.SlotCounts.Working
	if p.change != nil {
		p.change(&report)
	}
	raw, err := json.Marshal(report)
	utilruntime.Must(err)
	name := v1alpha1.ReportName(job)
	if p.last[name] == string(raw) {
		return
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{v1alpha1.ReportKey: string(raw)}})
	utilruntime.Must(err)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name}}
	if p.client.Patch(ctx, configMap, client.RawPatch("application/merge-patch+json", patch)) == nil {
		p.last[name] = string(raw)
	}
}

// job is a small job that the schema accepts.
func (p *place) job(name string, replicas int32) *v1alpha1.ShardedJob {
	return &v1alpha1.ShardedJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name},
		Spec: v1alpha1.ShardedJobSpec{
			Replicas: &replicas,
			Database: v1alpha1.DatabaseSpec{SecretName: "app-db"},
			Table:    v1alpha1.TableSpec{Name: "images", Key: "id", Pending: "thumb IS NULL"},
			Process:  v1alpha1.ProcessSpec{SQL: &v1alpha1.SQLProcess{Statement: "UPDATE images SET thumb = '' WHERE id = ANY($1)"}},
		},
	}
}

func (p *place) create(name string, replicas int32) *v1alpha1.ShardedJob {
	job := p.job(name, replicas)
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	return job
}

func (p *place) get(obj client.Object, name string) error {
	return p.client.Get(p.ctx, client.ObjectKey{Namespace: p.namespace, Name: name}, obj)
}

// edit changes the spec as a person would, whatever happens to status meanwhile.
func (p *place) edit(change func(*v1alpha1.ShardedJob)) {
	p.Eventually(func() error {
		var job v1alpha1.ShardedJob
		if err := p.get(&job, "images"); err != nil {
			return err
		}
		change(&job)
		return p.client.Update(p.ctx, &job)
	}).Should(Succeed())
}

func (p *place) scale(n int32) {
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Replicas = &n })
}

// condition is "status reason" of a condition for the newest generation, with its message.
func (p *place) condition(name, kind string) func() string {
	return func() string {
		var job v1alpha1.ShardedJob
		if err := p.get(&job, name); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(job.Status.Conditions, kind)
		if c == nil || c.ObservedGeneration != job.Generation || job.Status.ObservedGeneration != job.Generation {
			return "not observed"
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

func (p *place) awaitReady(name string, n int32) {
	reason := "True Running"
	if n == 0 {
		reason = "True Paused"
	}
	p.Eventually(p.condition(name, v1alpha1.ConditionReady)).Should(HavePrefix(reason))
	var job v1alpha1.ShardedJob
	p.Expect(p.get(&job, name)).To(Succeed())
	p.Expect(job.Status.Partition.Slots).To(Equal(n))
	p.Expect(job.Status.Repartition).To(BeNil())
	p.Eventually(func() map[string]string { return p.uids(name) }).Should(HaveLen(int(n)))
}

// uids are those of the job's pods by name.
func (p *place) uids(name string) map[string]string {
	var pods corev1.PodList
	p.Expect(p.client.List(p.ctx, &pods, client.InNamespace(p.namespace), client.MatchingLabels{v1alpha1.LabelJob: name})).To(Succeed())
	uids := map[string]string{}
	for _, pod := range pods.Items {
		uids[pod.Name] = string(pod.UID)
	}
	return uids
}

func (p *place) plan() v1alpha1.Plan {
	var configMap corev1.ConfigMap
	p.Expect(p.get(&configMap, v1alpha1.PlanName("images"))).To(Succeed())
	plan, err := v1alpha1.DecodePlan([]byte(configMap.Data[v1alpha1.PlanKey]))
	p.Expect(err).NotTo(HaveOccurred())
	return plan
}
