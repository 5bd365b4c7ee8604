package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/hack/cluster"
	"shardedjob.dev/hack/stage"
)

// namespace is the demo's own; it goes away with it.
const namespace = "shardedjob-demo"

// scene is where the demo plays.
type scene struct {
	stage.Kubectl
	uri  string // of the database, as pods and we reach it
	took time.Duration
	down func(context.Context) error
}

func setUp(ctx context.Context) (*scene, error) {
	heading("Setting the scene")
	if name := os.Getenv("DEMO_CONTEXT"); name != "" {
		return elsewhere(ctx, name)
	}
	st, err := stage.Up(ctx, os.Stdout)
	if err != nil {
		return nil, err
	}
	s := &scene{Kubectl: st.Kubectl, down: st.Down}
	if s.uri, err = stage.NewDatabase(ctx, st.Server, "demo"); err == nil {
		err = st.CreateNamespace(ctx, namespace)
	}
	if err != nil {
		return nil, errors.Join(err, st.Down(ctx))
	}
	return s, nil
}

// elsewhere sets the scene on a cluster of the user's.
func elsewhere(ctx context.Context, name string) (*scene, error) {
	image, uri := os.Getenv("DEMO_IMAGE"), os.Getenv("DEMO_DATABASE_URI")
	if image == "" || uri == "" {
		return nil, errors.New("with DEMO_CONTEXT, set DEMO_IMAGE to the image in a registry that the cluster can pull from, and DEMO_DATABASE_URI to a database that its pods and this machine can reach, where the demo may make the tables photos and audit")
	}
	k, err := stage.UserKubectl(name)
	if err != nil {
		return nil, err
	}
	s := &scene{Kubectl: k, uri: uri}
	var undo []func(context.Context) error
	s.down = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		var errs []error
		for i := range undo {
			errs = append(errs, undo[len(undo)-1-i](ctx))
		}
		return errors.Join(errs...)
	}
	// An operator that is there already is somebody's: removing it would remove their ShardedJobs.
	installed, err := s.Output(ctx, "", "get", "crd", "--ignore-not-found", "-o", "name", "shardedjobs.shardedjob.dev")
	if err != nil {
		return nil, err
	}
	if installed == "" {
		dir, remove, err := kustomization(image)
		if err != nil {
			return nil, err
		}
		undo = append(undo, func(ctx context.Context) error { defer remove(); return stage.Undeploy(ctx, k, dir) })
		if err := stage.Deploy(ctx, k, dir); err != nil {
			return nil, errors.Join(err, s.down(ctx))
		}
	}
	undo = append(undo, func(ctx context.Context) error { return dropTables(ctx, uri) })
	undo = append(undo, func(ctx context.Context) error {
		_, err := s.Output(ctx, "", "delete", "namespace", namespace, "--ignore-not-found", "--timeout=90s")
		return err
	})
	if _, err := s.Output(ctx, "", "create", "namespace", namespace); err != nil {
		undo = undo[:len(undo)-2] // somebody else's
		return nil, errors.Join(err, s.down(ctx))
	}
	return s, nil
}

// kustomization makes a folder that deploys the operator with another image.
func kustomization(image string) (dir string, remove func(), err error) {
	root, err := cluster.Root()
	if err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp("", "shardedjob-demo-"); err != nil {
		return "", nil, fmt.Errorf("make the manifests: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	base, err := filepath.Rel(dir, filepath.Join(root, "config", "default"))
	if err == nil {
		newName, tag, digest := splitImage(image)
		text := fmt.Sprintf(overlay, base, newName, tag, digest)
		err = os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644)
	}
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("make the manifests: %w", err)
	}
	return dir, remove, nil
}

// overlay names the image for the operator and, as config/default does, for the workers.
const overlay = `resources: [%q]
images:
- {name: shardedjob.dev/shardedjob, newName: %q, newTag: %q, digest: %q}
replacements:
- source: {kind: Deployment, name: shardedjob-controller-manager, fieldPath: "spec.template.spec.containers.[name=manager].image"}
  targets:
  - select: {kind: Deployment, name: shardedjob-controller-manager}
    fieldPaths: ["spec.template.spec.containers.[name=manager].env.[name=WORKER_IMAGE].value"]
`

// splitImage splits name:tag or name@digest; the name may hold a port.
func splitImage(image string) (name, tag, digest string) {
	name, digest, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	if tag == "" && digest == "" {
		tag = "latest"
	}
	return name, tag, digest
}

func dropTables(ctx context.Context, uri string) error {
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		return fmt.Errorf("connect to the database to remove the demo's tables: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS photos, audit; DROP FUNCTION IF EXISTS audit_photos, make_thumb"); err != nil {
		return fmt.Errorf("remove the demo's tables: %w", err)
	}
	return nil
}
