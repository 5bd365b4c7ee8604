// Command crdtrim makes the CRD that controller-gen wrote fit for use, in place:
//
//   - the descriptions below spec.template go, because they are Kubernetes' own and make the CRD so large that
//     `kubectl apply` cannot keep it in its annotation; ours stay, for `kubectl explain`;
//   - the pod template may leave out spec, and spec may leave out containers, because the operator fills them in.
//
// It fails if the CRD is still too large.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// maxBytes is the most that all annotations of an object may hold together; client-side apply keeps the object's
// JSON in one (k8s.io/apimachinery/pkg/api/validation, TotalAnnotationSizeLimitB).
const maxBytes = 256 * 1024

// manifest is a CRD without its status, as it is written down.
type manifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              apiextensionsv1.CustomResourceDefinitionSpec `json:"spec"`
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: crdtrim FILE...")
		os.Exit(2)
	}
	for _, path := range os.Args[1:] {
		if err := trimFile(path); err != nil {
			fmt.Fprintf(os.Stderr, "crdtrim: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func trimFile(path string) error {
	in, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	out, err := trim(in)
	if err != nil {
		return err
	}
	return os.WriteFile(path, out, 0o644)
}

// trim turns the YAML of a CRD into the YAML of the smaller one.
func trim(in []byte) ([]byte, error) {
	var crd manifest
	if err := yaml.UnmarshalStrict(in, &crd); err != nil {
		return nil, fmt.Errorf("reading the CRD: %w", err)
	}
	for _, version := range crd.Spec.Versions {
		if err := trimVersion(version); err != nil {
			return nil, fmt.Errorf("version %s: %w", version.Name, err)
		}
	}
	size, err := json.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("measuring the CRD: %w", err)
	}
	if len(size) >= maxBytes {
		return nil, fmt.Errorf("the CRD has %d bytes as JSON, and kubectl apply works below %d", len(size), maxBytes)
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return nil, fmt.Errorf("writing the CRD: %w", err)
	}
	return append([]byte("---\n"), out...), nil
}

func trimVersion(version apiextensionsv1.CustomResourceDefinitionVersion) error {
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return errors.New("no schema")
	}
	return edit(version.Schema.OpenAPIV3Schema, func(template *apiextensionsv1.JSONSchemaProps) error {
		dropRequired(template, "spec")
		if err := edit(template, func(podSpec *apiextensionsv1.JSONSchemaProps) error {
			dropRequired(podSpec, "containers")
			return nil
		}, "spec"); err != nil {
			return err
		}
		ours := template.Description
		dropDescriptions(template)
		template.Description = ours
		return nil
	}, "spec", "template")
}

// edit changes the property that path leads to. Properties are kept by value, so each is put back on the way out.
func edit(s *apiextensionsv1.JSONSchemaProps, change func(*apiextensionsv1.JSONSchemaProps) error, path ...string) error {
	if len(path) == 0 {
		return change(s)
	}
	property, ok := s.Properties[path[0]]
	if !ok {
		return fmt.Errorf("the schema has no property %q where one was expected", path[0])
	}
	if err := edit(&property, change, path[1:]...); err != nil {
		return err
	}
	s.Properties[path[0]] = property
	return nil
}

func dropRequired(s *apiextensionsv1.JSONSchemaProps, name string) {
	s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
}

// dropDescriptions empties the descriptions of a schema and of everything that controller-gen puts below one.
func dropDescriptions(s *apiextensionsv1.JSONSchemaProps) {
	s.Description = ""
	for name, property := range s.Properties {
		dropDescriptions(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		dropDescriptions(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		dropDescriptions(s.AdditionalProperties.Schema)
	}
}
