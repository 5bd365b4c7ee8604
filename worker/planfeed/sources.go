package planfeed

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"shardedjob.dev/api/v1alpha1"
)

// filePoll is how often the mounted plan is read. The kubelet renews it about once a minute, by swapping a symbolic
// link that file watchers lose, so that reading a few kilobytes is the simpler way.
const filePoll = time.Second

// WatchFile offers the plan in a file whenever its content changes, until the context ends. A missing file is waited
// for.
func WatchFile(ctx context.Context, feed *Feed, path string, log *slog.Logger) {
	var last []byte
	tick := time.NewTicker(filePoll)
	defer tick.Stop()
	for {
		if raw, err := os.ReadFile(path); err == nil && !bytes.Equal(raw, last) {
			last = raw
			offer(feed, raw, "file", log)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// WatchAPI offers the plan in a ConfigMap whenever it changes, until the context ends. While the API server is away it
// keeps trying.
func WatchAPI(ctx context.Context, feed *Feed, client kubernetes.Interface, namespace, name string, log *slog.Logger) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			// The Role allows this one object alone.
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}))
	see := func(obj any) {
		if cm, ok := obj.(*corev1.ConfigMap); ok {
			offer(feed, []byte(cm.Data[v1alpha1.PlanKey]), "API server", log)
		}
	}
	_, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, obj any) { see(obj) },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	// The informer ends too, but nobody waits for it: after a refused connection it sleeps for up to a minute, whatever the
	// context says, and a pod has no minute to stop.
	return nil
}

func offer(feed *Feed, raw []byte, source string, log *slog.Logger) {
	plan, err := v1alpha1.DecodePlan(raw)
	if err != nil {
		log.Warn("Plan refused", "source", source, "error", err)
		return
	}
	if feed.Offer(plan) {
		log.Info("New plan", "source", source, "epoch", plan.Epoch, "slots", plan.Slots, "generation", plan.Generation)
	}
}
