package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

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
	// adopt lets workers adopt slots whose own worker is missing.
	adopt bool
	// lingers says of a pod that is not ready whether its worker holds its slot all the same.
	lingers func(corev1.Pod) bool
	// nodes are those that pods are bound to, in turn; without any, pods stay unbound.
	nodes []string
	// lost are nodes whose kubelets do nothing any more.
	lost map[string]bool
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
	if !p.playScheduler(ctx, pod) || p.lost[pod.Spec.NodeName] {
		return
	}
	if pod.DeletionTimestamp != nil {
		_ = p.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		return
	}
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

// playWorkers writes the report that the coordinator of all workers would write.
func (p *place) playWorkers(ctx context.Context, job string, plan v1alpha1.Plan, pods []corev1.Pod) {
	report := v1alpha1.Report{
		FormatVersion: v1alpha1.ReportFormatVersion, UID: plan.UID, Epoch: plan.Epoch, HighestEpoch: plan.Epoch,
		Slots: plan.Slots, Generation: plan.Generation, By: v1alpha1.ShardByValue,
	}
	holders := map[int32]string{}
	var ready []string
	for i := range pods {
		pod := &pods[i]
		ordinal, ok := ordinalOf(job, pod.Name)
		if !ok || jobUID(pod) != string(plan.UID) {
			continue
		}
		if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
			ready = append(ready, pod.Name)
		} else if p.lingers == nil || !p.lingers(*pod) {
			continue
		}
		holders[ordinal] = pod.Name
	}
	if len(ready) == 0 {
		return
	}
	report.Coordinator = ready[0]
	for k := range plan.Slots {
		slot := v1alpha1.SlotStatus{Ordinal: k, Pod: v1alpha1.PodName(job, k), Holder: holders[k], HolderPID: 4711 + k}
		switch {
		case slot.Holder != "":
			slot.State = v1alpha1.SlotWorking
			report.SlotCounts.Working++
		case p.adopt:
			slot.State, slot.Holder = v1alpha1.SlotAdopted, ready[int(k)%len(ready)]
			report.SlotCounts.Adopted++
		default:
			slot.State, slot.HolderPID = v1alpha1.SlotUnheld, 0
			report.SlotCounts.Unheld++
		}
		report.SlotStatuses = append(report.SlotStatuses, slot)
	}
	report.Forgotten = plan.Forget && report.SlotCounts.Working == plan.Slots
	if p.change != nil {
		p.change(&report)
	}
	p.write(ctx, v1alpha1.ReportName(job), report)
}

func (p *place) write(ctx context.Context, name string, report v1alpha1.Report) {
	raw, err := json.Marshal(report)
	utilruntime.Must(err)
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
