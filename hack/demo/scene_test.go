package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"shardedjob.dev/hack/cluster"
)

func TestSplitImage(t *testing.T) {
	for _, c := range []struct{ image, name, tag, digest string }{
		{"registry.example/jobs/shardedjob:v1", "registry.example/jobs/shardedjob", "v1", ""},
		{"registry.example:5000/shardedjob", "registry.example:5000/shardedjob", "latest", ""},
		{"shardedjob@sha256:0123", "shardedjob", "", "sha256:0123"},
		{"registry.example:5000/shardedjob:v1@sha256:0123", "registry.example:5000/shardedjob", "v1", "sha256:0123"},
	} {
		name, tag, digest := splitImage(c.image)
		if name != c.name || tag != c.tag || digest != c.digest {
			t.Errorf("%s: got %q, %q, %q", c.image, name, tag, digest)
		}
	}
}

// TestKustomization gives the other image to the operator and, through it, to the workers.
func TestKustomization(t *testing.T) {
	servers, err := cluster.EnsureBinary(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"registry.example:5000/shardedjob:v1", "registry.example/shardedjob@sha256:" + strings.Repeat("0", 64)} {
		dir, remove, err := kustomization(image)
		if err != nil {
			t.Fatal(err)
		}
		defer remove()
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), servers, "kubectl", "kustomize", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", filepath.Base(dir), err, out)
		}
		if n := strings.Count(string(out), image); n != 2 || strings.Contains(string(out), "shardedjob.dev/shardedjob:") {
			t.Errorf("%s is there %d times in\n%s", image, n, out)
		}
	}
}
