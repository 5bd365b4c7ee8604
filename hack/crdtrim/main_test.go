package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

const crd = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    controller-gen.kubebuilder.io/version: v0.0.0
  name: shardedjobs.shardedjob.dev
spec:
  group: shardedjob.dev
  names:
    kind: ShardedJob
    plural: shardedjobs
  scope: Namespaced
  versions:
  - name: v1alpha1
    schema:
      openAPIV3Schema:
        description: ShardedJob runs a function.
        properties:
          spec:
            description: spec is what should run.
            properties:
              replicas:
                default: 1
                description: replicas is n.
                format: int32
                maximum: 2147483647
                type: integer
              template:
                description: template is ours.
                properties:
                  spec:
                    description: theirs-1
                    properties:
                      containers:
                        description: theirs-2
                        items:
                          description: theirs-3
                          properties:
                            name:
                              description: theirs-4
                              type: string
                          required:
                          - name
                          type: object
                        type: array
                      nodeSelector:
                        additionalProperties:
                          description: theirs-5
                          type: string
                        description: theirs-6
                        type: object
                    required:
                    - containers
                    - other
                    type: object
                required:
                - spec
                type: object
            required:
            - replicas
            type: object
        type: object
    served: true
    storage: true
`

func TestTrim(t *testing.T) {
	out, err := trim([]byte(crd))
	if err != nil {
		t.Fatal(err)
	}
	text := string(out)
	for _, want := range []string{
		"---\napiVersion:",
		"description: ShardedJob runs a function.",
		"description: spec is what should run.",
		"description: replicas is n.",
		"description: template is ours.",
		"maximum: 2147483647\n",
		"- name\n",
		"- other\n",
		"- replicas\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is gone from\n%s", want, text)
		}
	}
	for _, unwanted := range []string{"theirs", "- containers", "- spec", "status", "creationTimestamp"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("%q is in\n%s", unwanted, text)
		}
	}
	again, err := trim(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, out) {
		t.Error("trimming twice gives another result")
	}
}

func TestTrimRefuses(t *testing.T) {
	var bulk strings.Builder
	for i := range 6000 {
		fmt.Fprintf(&bulk, "              p%d: {type: string, description: %s}\n", i, strings.Repeat("x", 20))
	}
	for _, tc := range []struct{ name, in, want string }{
		{"no template", strings.Replace(crd, "              template:", "              other:", 1), `no property "template"`},
		{"too large", strings.Replace(crd, "              replicas:\n", bulk.String()+"              replicas:\n", 1), "bytes as JSON"},
		{"an unknown field, which would be lost", strings.Replace(crd, "scope:", "scoop:", 1), "scoop"},
		{"not YAML", "\t", "reading the CRD"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := trim([]byte(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}
