package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"shardedjob.dev/api/v1alpha1"
)

const (
	reportEvery = time.Second
	// mountDelay is how long the kubelet takes to bring a new plan to the pods.
	mountDelay = 4 * time.Second
	// surplusDelay is how long surplus pods live after a plan without a slot for them.
	surplusDelay = time.Second
)

// scale wishes for n slots. The newest wish wins, as in the operator.
func (j *job) scale(n int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.want.Slots = n
	if j.over {
		return
	}
	if n >= j.replicas {
		j.replicas = n
	} else {
		j.shrinkAt = time.Now().Add(surplusDelay)
	}
	j.wake()
}

// reload wishes for another spec of the same partition.
func (j *job) reload(change func(*v1alpha1.Plan)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.want.Generation++
	change(&j.want)
	j.wake()
}

func (j *job) wake() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// operate writes plans and reads reports until ctx ends. Whatever fails is tried again: the API server may be away.
func (j *job) operate(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			j.readReport(ctx)
			j.mount()
		case <-j.changed:
		}
		j.publish(ctx)
	}
}

// publish writes what is wanted, if it is not what was published. An epoch is one more than the highest that was seen anywhere.
func (j *job) publish(ctx context.Context) {
	j.mu.Lock()
	known, lost := j.version != "", j.lost
	j.mu.Unlock()
	if lost || !known && j.readPlan(ctx) != nil {
		return
	}
	j.mu.Lock()
	plan, last, version := j.want, j.published, j.version
	j.mu.Unlock()
	plan.Epoch = last.Epoch
	if plan.Slots != last.Slots || version == missing || j.highestSeen() > last.Epoch {
		plan.Epoch = max(last.Epoch, j.highestSeen()) + 1
	}
	if plan.Epoch == last.Epoch && plan.Generation == last.Generation {
		return
	}
	version, err := j.writePlan(ctx, plan, version)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.version = version; err != nil {
		return // it may have arrived all the same: read it before the next try
	}
	j.published = plan
	j.history = append(j.history, plan)
	if j.mountDue.IsZero() {
		j.mountDue = time.Now().Add(mountDelay)
	}
}

func (j *job) highestSeen() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.highest
}

// missing is the version of a ConfigMap that does not exist.
const missing = "missing"

// readPlan finds out which plan is published.
func (j *job) readPlan(ctx context.Context) error {
	cm, err := j.client.CoreV1().ConfigMaps(namespace).Get(ctx, v1alpha1.PlanName(j.name), metav1.GetOptions{})
	j.mu.Lock()
	defer j.mu.Unlock()
	if apierrors.IsNotFound(err) {
		j.version = missing
		return nil
	}
	if err != nil {
		return err
	}
	if j.published, err = v1alpha1.DecodePlan([]byte(cm.Data[v1alpha1.PlanKey])); err == nil {
		j.version = cm.ResourceVersion
	}
	return err
}

// writePlan creates or replaces the ConfigMap, the latter only if it still has the version given: a write that was thought to
// have failed must not arrive after the next. It returns the new version, none after a failure.
func (j *job) writePlan(ctx context.Context, plan v1alpha1.Plan, version string) (string, error) {
	data, err := v1alpha1.EncodePlan(plan)
	if err != nil {
		return "", err
	}
	maps := j.client.CoreV1().ConfigMaps(namespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.PlanName(j.name), Namespace: namespace}, Data: data}
	if version == missing {
		cm, err = maps.Create(ctx, cm, metav1.CreateOptions{})
	} else {
		cm.ResourceVersion = version
		cm, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	}
	if err != nil {
		return "", err
	}
	return cm.ResourceVersion, nil
}

// readReport takes from the report what the operator goes by.
func (j *job) readReport(ctx context.Context) {
	cm, err := j.client.CoreV1().ConfigMaps(namespace).Get(ctx, v1alpha1.ReportName(j.name), metav1.GetOptions{})
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	report, _, err := v1alpha1.DecodeReport(j.want.UID, cm.Data)
	if err != nil {
		j.wrong("job %s: its report cannot be read: %v", j.name, err)
	}
	if report == nil {
		return
	}
	j.report = *report
	j.highest = max(j.highest, report.Epoch, report.HighestEpoch)
	if report.CompleteTime != nil && !j.isComplete() {
		close(j.complete)
	}
}

// isComplete says whether the report has said so.
func (j *job) isComplete() bool {
	select {
	case <-j.complete:
		return true
	default:
		return false
	}
}

func (j *job) lastReport() v1alpha1.Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.report
}

// mount brings the published plan to the pods, as the kubelet does some time later.
func (j *job) mount() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mountDue.IsZero() || time.Now().Before(j.mountDue) {
		return
	}
	j.mountDue = time.Time{}
	j.mountPlan(j.published)
}

// mountPlan writes the file that all pods see, at once or not at all, as the kubelet's link is swapped.
func (j *job) mountPlan(plan v1alpha1.Plan) {
	data, err := v1alpha1.EncodePlan(plan)
	if err == nil {
		next := filepath.Join(j.dir, "next-plan")
		if err = os.WriteFile(next, []byte(data[v1alpha1.PlanKey]), 0o644); err == nil {
			err = os.Rename(next, j.planFile())
		}
	}
	if err != nil {
		j.wrong("job %s: its plan cannot be mounted: %v", j.name, err)
	}
}
