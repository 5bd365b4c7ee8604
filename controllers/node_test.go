package controllers

import (
	"context"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// node makes a node that a kubelet of this place seems to run.
func (p *place) node(name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Expect(p.client.Create(p.ctx, node)).To(Succeed())
	p.nodeReady(name, corev1.ConditionTrue)
	now := metav1.NewMicroTime(time.Now())
	p.Expect(p.client.Create(p.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &now},
	})).To(Succeed())
	p.set(func() { p.nodes = append(p.nodes, name) })
}

// nodeReady sets what is known of a node.
func (p *place) nodeReady(name string, status corev1.ConditionStatus) {
	p.Eventually(func() error {
		var node corev1.Node
		if err := p.client.Get(p.ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
		return p.client.Status().Update(p.ctx, &node)
	}).Should(Succeed())
}

// lose cuts a node off: its kubelet does nothing any more, and the node controller is told so at once, instead of finding
// out after its grace period and then marking the pods.
func (p *place) lose(name string) {
	p.set(func() { p.lost = map[string]bool{name: true} })
	p.nodeReady(name, corev1.ConditionUnknown)
}

// playScheduler binds a pod to a node that is there, if there are nodes, and says whether it is bound.
func (p *place) playScheduler(ctx context.Context, pod *corev1.Pod) bool {
	if len(p.nodes) == 0 || pod.Spec.NodeName != "" {
		return true
	}
	for i := range p.nodes {
		ordinal, _ := ordinalOf(pod.Labels["shardedjob.dev/job"], pod.Name)
		node := p.nodes[(int(ordinal)+i)%len(p.nodes)]
		if p.lost[node] {
			continue
		}
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		_ = p.client.SubResource("binding").Create(ctx, pod, binding)
		break
	}
	return false
}
