// Command worker is what runs in each pod of a ShardedJob: it holds the slot of the pod's ordinal and works its rows.
//
// It takes everything from its environment and its mounts; see api/v1alpha1/names.go. The flags are for running it
// outside a pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var (
		cfg        worker.Config
		kubeconfig string
		verbose    bool
	)
	flag.StringVar(&cfg.PlanFile, "plan-file", v1alpha1.PlanMountPath+"/"+v1alpha1.PlanKey, "file with the plan, for when the API server is away")
	flag.StringVar(&cfg.DatabaseDir, "database-dir", v1alpha1.DatabaseMountPath, "folder with the database Secret")
	flag.StringVar(&cfg.CADir, "ca-dir", v1alpha1.CAMountPath, "folder with the CA Secret")
	flag.StringVar(&cfg.ListenAddress, "listen-address", fmt.Sprintf(":%d", v1alpha1.WorkerPort), "address of /healthz, /readyz, /statusz and /metrics")
	flag.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig to use outside a pod")
	flag.BoolVar(&verbose, "verbose", false, "log each batch")
	flag.Parse()

	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))

	cfg.Pod = os.Getenv(v1alpha1.EnvPodName)
	cfg.PodUID = os.Getenv(v1alpha1.EnvPodUID)
	cfg.Namespace = os.Getenv(v1alpha1.EnvPodNamespace)
	cfg.Job = os.Getenv(v1alpha1.EnvJobName)
	cfg.JobUID = types.UID(os.Getenv(v1alpha1.EnvJobUID))
	cfg.URIKey = os.Getenv(v1alpha1.EnvURIKey)
	var err error
	if cfg.Client, err = client(kubeconfig); err != nil {
		return err
	}
	w, err := worker.New(cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// client reaches the API server; it makes no request yet, so that a worker starts while the server is away.
func client(kubeconfig string) (kubernetes.Interface, error) {
	var (
		config *rest.Config
		err    error
	)
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("not in a pod: name a kubeconfig with --kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("configure the Kubernetes client: %w", err)
	}
	config.UserAgent = "shardedjob-worker"
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("configure the Kubernetes client: %w", err)
	}
	return c, nil
}
