package controllers

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"shardedjob.dev/api/v1alpha1"
)

// AddToScheme registers the kinds of the API.
func AddToScheme(scheme *runtime.Scheme) error { return v1alpha1.AddToScheme(scheme) }

// ManagerOptions are what the operator needs of a manager: a cache that holds only objects that belong to jobs, in
// the given namespaces or in all.
func ManagerOptions(namespaces []string) ctrl.Options {
	labeled := cache.ByObject{Label: jobObjects()}
	options := ctrl.Options{
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&appsv1.StatefulSet{}:    labeled,
				&corev1.ConfigMap{}:      labeled,
				&corev1.Pod{}:            labeled,
				&corev1.ServiceAccount{}: labeled,
				&rbacv1.Role{}:           labeled,
				&rbacv1.RoleBinding{}:    labeled,
			},
		},
	}
	if len(namespaces) > 0 {
		options.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range namespaces {
			options.Cache.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return options
}

// jobObjects selects what carries the name of a job.
func jobObjects() labels.Selector {
	requirement, err := labels.NewRequirement(v1alpha1.LabelJob, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*requirement)
}

// Add adds the reconciler to a manager that was made with ManagerOptions.
func Add(mgr ctrl.Manager, workerImage string) error {
	r := &Reconciler{
		Client:      mgr.GetClient(),
		APIReader:   mgr.GetAPIReader(),
		Recorder:    mgr.GetEventRecorder("shardedjob-controller"),
		Clock:       clock.RealClock{},
		WorkerImage: workerImage,
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("add the ShardedJob controller: %w", err)
	}
	return nil
}
