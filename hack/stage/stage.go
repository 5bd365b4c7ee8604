// Package stage sets the whole scene on one machine: a Kubernetes node, a PostgreSQL that its pods reach, the project's image,
// built and loaded, and the operator, deployed with the manifests that users deploy. Then it takes everything down again.
//
// The demo and the end-to-end tests play on it. Nothing in it is for them alone: what they see is what users see.
package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/cluster"
	"shardedjob.dev/hack/image"
	"shardedjob.dev/hack/postgres"
)

const (
	// Namespace is where the operator runs.
	Namespace = "shardedjob-system"
	// Deployment is the operator's.
	Deployment = "deployment/shardedjob-controller-manager"
)

// downPatience bounds the way down, which goes on when the context of the way up has ended.
const downPatience = 3 * time.Minute

// Stage is a scene that is set.
type Stage struct {
	Kubectl
	// Server is the PostgreSQL that jobs work on. Pods reach it at cluster.BridgeIP.
	Server *postgres.Server

	out   io.Writer
	began time.Time
	node  *cluster.Node
	found bool // the node was up before us, and stays

	namespaces []string // to remove where the node stays
}

// Up sets the scene, and tells out how far it is. It needs root on Linux. If it fails, or ctx ends, what it had begun is
// taken down.
func Up(ctx context.Context, out io.Writer) (*Stage, error) {
	s := &Stage{out: out, began: time.Now()}
	if err := s.up(ctx); err != nil {
		return nil, errors.Join(err, s.Down(ctx))
	}
	return s, nil
}

func (s *Stage) up(ctx context.Context) (err error) {
	node, err := cluster.NewNode(s.out)
	if err != nil {
		return err
	}
	s.say("Kubernetes %s", cluster.Version)
	found := node.Alive(ctx)
	if err := node.Up(ctx); err != nil {
		return err
	}
	s.node, s.found = node, found
	if s.Kubectl, err = nodeKubectl(ctx, node); err != nil {
		return err
	}
	s.say("PostgreSQL")
	if s.Server, err = StartServer(ctx); err != nil {
		return err
	}
	s.say("Image %s", image.Project().Name)
	if err := s.loadImage(ctx); err != nil {
		return err
	}
	s.say("Operator")
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := Deploy(ctx, s.Kubectl, filepath.Join(root, "config", "default")); err != nil {
		return err
	}
	s.say("The scene is set")
	return nil
}

// loadImage builds the image from the working tree and gives it to the node.
func (s *Stage) loadImage(ctx context.Context) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "shardedjob-image-")
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "image.tar")
	if err := image.Write(ctx, root, image.Project(), path); err != nil {
		return err
	}
	return s.node.LoadImage(ctx, path)
}

// Deploy applies the operator's manifests and waits until it runs.
func Deploy(ctx context.Context, k Kubectl, kustomization string) error {
	// What a deployment before this one left may run an older image of the same name.
	for _, args := range [][]string{
		{"apply", "-k", kustomization},
		{"rollout", "restart", "-n", Namespace, Deployment},
		{"rollout", "status", "-n", Namespace, Deployment, "--timeout=120s"},
		{"wait", "--for=condition=Available", "-n", Namespace, Deployment, "--timeout=60s"},
	} {
		if _, err := k.Output(ctx, "", args...); err != nil {
			return fmt.Errorf("deploy the operator: %w", err)
		}
	}
	return nil
}

// Undeploy removes the operator, the CRD, and with it every ShardedJob.
func Undeploy(ctx context.Context, k Kubectl, kustomization string) error {
	if _, err := k.Output(ctx, "", "delete", "-k", kustomization, "--ignore-not-found", "--timeout=60s"); err != nil {
		return fmt.Errorf("remove the operator: %w", err)
	}
	return nil
}

// Down takes everything down that Up set up, also after ctx has ended.
func (s *Stage) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downPatience)
	defer cancel()
	var errs []error
	if s.node != nil && s.found && s.Kubeconfig != "" {
		if root, err := cluster.Root(); err == nil {
			if len(s.namespaces) > 0 {
				_, err := s.Output(ctx, "", append([]string{"delete", "namespace", "--ignore-not-found", "--timeout=90s"}, s.namespaces...)...)
				errs = append(errs, err)
			}
			errs = append(errs, Undeploy(ctx, s.Kubectl, filepath.Join(root, "config", "default")))
		}
	} else if s.node != nil {
		errs = append(errs, s.node.Down(ctx))
	}
	if s.Server != nil {
		errs = append(errs, s.Server.Close())
	}
	return errors.Join(errs...)
}

// CreateNamespace makes a namespace that goes away with the scene.
func (s *Stage) CreateNamespace(ctx context.Context, name string) error {
	_, err := s.Output(ctx, "", "create", "namespace", name)
	if err == nil {
		s.namespaces = append(s.namespaces, name)
	}
	return err
}

// StartServer starts a PostgreSQL that pods reach, at cluster.BridgeIP.
func StartServer(ctx context.Context) (*postgres.Server, error) {
	return postgres.Start(ctx, postgres.Options{
		ListenAddresses: []string{cluster.BridgeIP},
		AllowedCIDRs:    []string{cluster.PodCIDR},
		Password:        rand.Text(),
	})
}

// NewDatabase makes an empty database with an owner of its own, who is no superuser, and returns the owner's connection
// URI, good here and in pods.
func NewDatabase(ctx context.Context, server *postgres.Server, name string) (uri string, err error) {
	if err := server.CreateDatabase(ctx, name); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, server.URI(name))
	if err != nil {
		return "", fmt.Errorf("make database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	owner, password := pgx.Identifier{name}.Sanitize(), rand.Text() // letters and digits
	if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s'; ALTER DATABASE %[1]s OWNER TO %[1]s; ALTER SCHEMA public OWNER TO %[1]s", owner, password)); err != nil {
		return "", fmt.Errorf("make the owner of database %s", name) // the server's words may quote the password
	}
	return fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", name, password, cluster.BridgeIP, server.Port(), name), nil
}

// say tells a person which step begins, and how much time has gone.
func (s *Stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, "[%5.1fs] %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}
