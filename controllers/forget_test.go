package controllers

import (
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"shardedjob.dev/api/v1alpha1"
)

// TestForget drops the progress of a job that runs, is paused or is complete, and then starts it anew. It is typed as the
// README says.
func TestForget(t *testing.T) {
	p := newPlace(t)
	kubectl := func(args ...string) {
		args = append([]string{"--kubeconfig", shared.controlPlane.Kubeconfig(), "-n", p.namespace}, args...)
		out, err := exec.CommandContext(t.Context(), "kubectl", args...).CombinedOutput()
		p.Expect(err).NotTo(HaveOccurred(), string(out))
	}
	forget := func() {
		kubectl("annotate", "sj/images", "shardedjob.dev/forget=true")
		kubectl("wait", "sj/images", `--for=jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Forgotten`, "--timeout=60s")
	}
	ready, complete := p.condition("images", v1alpha1.ConditionReady), p.condition("images", v1alpha1.ConditionComplete)

	p.create("images", 3)
	p.awaitReady("images", 3)
	epoch := p.plan().Epoch
	forget()
	plan := p.plan()
	p.Expect(plan.Forget).To(BeTrue())
	p.Expect(plan.Epoch).To(Equal(epoch + 1))
	p.Expect(plan.Slots).To(BeEquivalentTo(1))
	p.Expect(p.uids("images")).To(BeEmpty())
	p.Expect(complete()).To(HavePrefix("False Forgotten"))

	kubectl("annotate", "sj/images", "shardedjob.dev/forget-")
	p.awaitReady("images", 3)
	plan = p.plan()
	p.Expect(plan.Forget).To(BeFalse())
	p.Expect(plan.Epoch).To(Equal(epoch + 2))

	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = true })
	p.awaitReady("images", 0)
	forget()
	p.Expect(p.condition("images", v1alpha1.ConditionSuspended)()).To(HavePrefix("True Suspended"))
	kubectl("annotate", "sj/images", "shardedjob.dev/forget-")
	p.awaitReady("images", 0)
	p.edit(func(job *v1alpha1.ShardedJob) { job.Spec.Suspend = false })
	p.awaitReady("images", 3)

	now := metav1.Now()
	finished := p.plan().Epoch
	p.set(func() {
		p.change = func(r *v1alpha1.Report) {
			if r.Epoch == finished {
				r.CompleteTime, r.Processed, r.Remaining = &now, 10, ptr.To[int64](0)
			}
		}
	})
	p.Eventually(ready).Should(HavePrefix("True Complete"))
	p.Eventually(func() map[string]string { return p.uids("images") }).Should(BeEmpty())
	forget()
	p.Expect(complete()).To(HavePrefix("False Forgotten"))
	job := &v1alpha1.ShardedJob{}
	p.Expect(p.get(job, "images")).To(Succeed())
	p.Expect(job.Status.CompletionTime).To(BeNil())
	kubectl("annotate", "sj/images", "shardedjob.dev/forget-")
	p.awaitReady("images", 3)
	p.Expect(complete()).To(HavePrefix("False InProgress"))

	// Nobody to do it, and still nothing keeps the job from being deleted.
	p.set(func() { p.silent = true })
	kubectl("annotate", "sj/images", "shardedjob.dev/forget=true")
	p.Eventually(ready).Should(HavePrefix("False Forgetting"))
	kubectl("delete", "sj/images", "--timeout=30s")
	p.Eventually(func() bool { return apierrors.IsNotFound(p.get(job, "images")) && len(p.uids("images")) == 0 }).Should(BeTrue())
}

// TestAJobOfAGroupThatWasComplete is so at once, and says since when. Its time to live begins with the object.
func TestAJobOfAGroupThatWasComplete(t *testing.T) {
	p := newPlace(t)
	long := metav1.Date(2026, 1, 2, 3, 4, 5, 0, metav1.Now().Location())
	p.change = func(r *v1alpha1.Report) { r.CompleteTime = &long }
	job := p.job("images", 1)
	job.Spec.Table.Pending = ""
	job.Spec.ConsumerGroup = "media"
	job.Spec.TTLSecondsAfterFinished = ptr.To[int32](10)
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	p.Eventually(p.condition("images", v1alpha1.ConditionComplete)).Should(HavePrefix("True Complete: Every row that was in scope when the work began " +
		"was processed; it was complete already since " + long.UTC().Format("2006-01-02T15:04:05Z") + ", and the progress of consumer group media is kept"))
	p.Expect(p.get(job, "images")).To(Succeed())
	p.Expect(job.Status.CompletionTime.Time).To(BeTemporally("==", long.Time))
	p.Eventually(func() bool { return apierrors.IsNotFound(p.get(job, "images")) }).Should(BeTrue())
}

// TestTheEpochHealsAfterARestore: the workers know from the database that the plan's epoch has gone back.
func TestTheEpochHealsAfterARestore(t *testing.T) {
	p := newPlace(t)
	p.create("images", 2)
	p.awaitReady("images", 2)
	p.set(func() {
		p.change = func(r *v1alpha1.Report) {
			if r.Epoch < 4001 {
				r.HighestEpoch, r.SlotCounts = 4000, v1alpha1.SlotCounts{Waiting: r.Slots}
			}
		}
	})
	p.Eventually(func() int64 { return p.plan().Epoch }).Should(BeEquivalentTo(4001))
	p.awaitReady("images", 2)
}
