// Command manager is the operator of ShardedJobs.
package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"shardedjob.dev/controllers"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// settings are the command line.
type settings struct {
	metricsAddress, probeAddress string
	leaderElect                  bool
	workerImage, namespaces      string
}

func main() {
	var s settings
	flag.StringVar(&s.metricsAddress, "metrics-bind-address", ":8443", "where to serve metrics over HTTPS to authorized clients; 0 for nowhere")
	flag.StringVar(&s.probeAddress, "health-probe-bind-address", ":8081", "where to serve /healthz and /readyz")
	flag.BoolVar(&s.leaderElect, "leader-elect", false, "run only while holding the lease shardedjob-controller, so that several replicas may stand by")
	flag.StringVar(&s.workerImage, "worker-image", os.Getenv("WORKER_IMAGE"), "image of new worker pods (default: environment variable WORKER_IMAGE)")
	flag.StringVar(&s.namespaces, "namespaces", "", "comma-separated namespaces to serve; empty for all")
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "manager: "+err.Error())
		os.Exit(1)
	}
}

func run(s settings) error {
	if s.workerImage == "" {
		return errors.New("no worker image: set --worker-image or the environment variable WORKER_IMAGE")
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), controllers.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("register kinds: %w", err)
	}
	options := controllers.ManagerOptions(split(s.namespaces))
	options.Scheme = scheme
	options.HealthProbeBindAddress = s.probeAddress
	options.Metrics = metricsserver.Options{
		BindAddress:    s.metricsAddress,
		SecureServing:  true,
		FilterProvider: filters.WithAuthenticationAndAuthorization,
		// HTTP/2 has had denials of service that cost an open port dearly, and metrics gain nothing by it.
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
	}
	// The process ends when the lease is lost, so nothing of an old leader goes on writing.
	options.LeaderElection = s.leaderElect
	options.LeaderElectionID = "shardedjob-controller"
	options.LeaderElectionReleaseOnCancel = true

	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := controllers.Add(mgr, s.workerImage); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("add health checks: %w", err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
