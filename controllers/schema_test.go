package controllers

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"shardedjob.dev/api/v1alpha1"
)

const goodSpec = `
database: {secretName: app-db}
table: {name: images, key: id, pending: thumb IS NULL}
process: {sql: {statement: "UPDATE images SET thumb = '' WHERE id = ANY($1)"}}
`

// manifest makes a job from YAML, after changing parts of its spec; a nil value removes.
func (p *place) manifest(name string, changes map[string]any) *unstructured.Unstructured {
	var spec map[string]any
	p.Expect(yaml.Unmarshal([]byte(goodSpec), &spec)).To(Succeed())
	for path, value := range changes {
		fields := strings.Split(path, ".")
		if value == nil {
			unstructured.RemoveNestedField(spec, fields...)
			continue
		}
		p.Expect(unstructured.SetNestedField(spec, value, fields...)).To(Succeed())
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ShardedJob"))
	u.SetNamespace(p.namespace)
	u.SetName(name)
	return u
}

func TestBadSpecsAreRefusedWithAClearSentence(t *testing.T) {
	p := newPlace(t)
	strict := client.WithFieldValidation(p.client, "Strict")
	for name, c := range map[string]struct {
		job     string
		changes map[string]any
		says    string
	}{
		"no key":                  {changes: map[string]any{"table.key": nil}, says: "spec.table.key: Required value"},
		"unknown sharding":        {changes: map[string]any{"table.shardBy": "Range"}, says: `Unsupported value: "Range"`},
		"two processors":          {changes: map[string]any{"process.http": map[string]any{"url": "http://127.0.0.1"}}, says: `unknown field "spec.process.http"`},
		"replicas 1001":           {changes: map[string]any{"replicas": int64(1001)}, says: "should be less than or equal to 1000"},
		"statement without $1":    {changes: map[string]any{"process.sql.statement": "UPDATE images SET thumb = ''"}, says: "statement must use $1, the array of keys"},
		"statement with $10 only": {changes: map[string]any{"process.sql.statement": "UPDATE images SET thumb = '' WHERE id = $10"}, says: "statement must use $1, the array of keys"},
		"hand-over too short":     {changes: map[string]any{"fence.handoverSeconds": int64(20)}, says: "fence.handoverSeconds must be greater than batch.timeoutSeconds"},
		"adoption at once":        {changes: map[string]any{"fence.adoptAfterSeconds": int64(0)}, says: "should be greater than or equal to 1"},
		"adoption in two days":    {changes: map[string]any{"fence.adoptAfterSeconds": int64(172800)}, says: "should be less than or equal to 86400"},
		"unknown unreachablePods": {changes: map[string]any{"fence.unreachablePods": "Delete"}, says: `Unsupported value: "Delete"`},
		"L01 53 characters":       {job: strings.Repeat("a", 53), says: "the name of a ShardedJob can have at most 52 characters"},
		"L01 a dot":               {job: "a.b", says: "the name of a ShardedJob cannot contain a dot"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if c.job == "" {
				c.job = "images"
			}
			g.Expect(strict.Create(t.Context(), p.manifest(c.job, c.changes))).To(MatchError(ContainSubstring(c.says)))
		})
	}
}

func TestChangesThatCannotBeAreRefused(t *testing.T) {
	p := newPlace(t)
	p.Expect(p.client.Create(p.ctx, p.manifest("images", map[string]any{"consumerGroup": "media", "replicas": int64(0)}))).To(Succeed())
	for name, c := range map[string]struct {
		change func(*v1alpha1.ShardedJob)
		says   string
	}{
		"table":                  {func(j *v1alpha1.ShardedJob) { j.Spec.Table.Pending = "true" }, "table cannot be changed"},
		"another consumer group": {func(j *v1alpha1.ShardedJob) { j.Spec.ConsumerGroup = "other" }, "consumerGroup cannot be changed"},
		"no consumer group":      {func(j *v1alpha1.ShardedJob) { j.Spec.ConsumerGroup = "" }, "consumerGroup cannot be changed"},
		"mode":                   {func(j *v1alpha1.ShardedJob) { j.Spec.Mode = "Stream" }, `Unsupported value: "Stream"`},
		"another shardBy":        {func(j *v1alpha1.ShardedJob) { j.Spec.Table.ShardBy = v1alpha1.ShardByHash }, "table cannot be changed"},
		"a hand-over shorter than the batch": {func(j *v1alpha1.ShardedJob) {
			j.Spec.Batch.TimeoutSeconds, j.Spec.Fence.HandoverSeconds = 60, ptr.To[int32](30)
		}, "fence.handoverSeconds must be greater than batch.timeoutSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func() string {
				var job v1alpha1.ShardedJob
				if err := p.get(&job, "images"); err != nil {
					return err.Error()
				}
				c.change(&job)
				if err := p.client.Update(t.Context(), &job); err != nil {
					return err.Error()
				}
				return "accepted"
			}).Should(ContainSubstring(c.says))
		})
	}
}

func TestScaleSubresource(t *testing.T) {
	p := newPlace(t)
	job := p.create("images", 2)
	p.awaitReady("images", 2)
	var scale autoscalingv1.Scale
	p.Expect(p.client.SubResource("scale").Get(p.ctx, job, &scale)).To(Succeed())
	p.Expect(scale.Status.Selector).To(Equal("shardedjob.dev/job=images"))
	p.Expect(scale.Status.Replicas).To(BeEquivalentTo(2))
	scale.Spec.Replicas, scale.ResourceVersion = 1001, ""
	p.Expect(p.client.SubResource("scale").Update(p.ctx, job, client.WithSubResourceBody(&scale))).To(
		MatchError(ContainSubstring("should be less than or equal to 1000")))
	scale.Spec.Replicas = 3
	p.Expect(p.client.SubResource("scale").Update(p.ctx, job, client.WithSubResourceBody(&scale))).To(Succeed())
	p.awaitReady("images", 3)
}

func TestDefaultsAreVisible(t *testing.T) {
	p := newPlace(t)
	p.Expect(p.client.Create(p.ctx, p.manifest("images", nil))).To(Succeed())
	var job v1alpha1.ShardedJob
	p.Expect(p.get(&job, "images")).To(Succeed())
	p.Expect(job.Spec.Replicas).To(Equal(ptr.To[int32](1)))
	p.Expect(job.Spec.Mode).To(Equal(v1alpha1.ModeBackfill))
	p.Expect(job.Spec.Batch).To(Equal(v1alpha1.BatchSpec{Rows: 500, TimeoutSeconds: 20}))
	p.Expect(job.Spec.Failure).To(Equal(v1alpha1.FailureSpec{MaxAttempts: 5, WhenExhausted: v1alpha1.HoldExhausted}))
	p.Expect(job.Spec.Database.URIKey).To(Equal("uri"))
	p.Expect(job.Spec.Table.Schema).To(Equal("public"))
	p.Expect(job.Spec.Table.ShardBy).To(Equal(v1alpha1.ShardByAuto))
	p.Expect(job.Spec.Fence).To(Equal(v1alpha1.FenceSpec{AdoptAfterSeconds: 30, UnreachablePods: v1alpha1.KeepUnreachable}))
	p.Expect(job.Spec.HandoverSeconds()).To(BeEquivalentTo(30))
}

// TestN05TheHandOverOutlastsTheBatch: were both limits the same, a batch that takes its whole time would always be ended
// from outside, too.
func TestN05TheHandOverOutlastsTheBatch(t *testing.T) {
	p := newPlace(t)
	for name, c := range map[string]struct {
		changes map[string]any
		want    int32 // seconds of the hand-over; 0 if it is refused
	}{
		"the same":                {map[string]any{"batch.timeoutSeconds": int64(60), "fence.handoverSeconds": int64(60)}, 0},
		"shorter":                 {map[string]any{"batch.timeoutSeconds": int64(60), "fence.handoverSeconds": int64(59)}, 0},
		"longer":                  {map[string]any{"batch.timeoutSeconds": int64(60), "fence.handoverSeconds": int64(61)}, 61},
		"left out":                {map[string]any{"batch.timeoutSeconds": int64(60)}, 70},
		"left out, longest batch": {map[string]any{"batch.timeoutSeconds": int64(3600)}, 3610},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var job v1alpha1.ShardedJob
			u := p.manifest("images", c.changes)
			u.SetName("")
			u.SetGenerateName("images-")
			err := p.client.Create(t.Context(), u)
			if c.want == 0 {
				g.Expect(err).To(MatchError(ContainSubstring("fence.handoverSeconds must be greater than batch.timeoutSeconds")))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.get(&job, u.GetName())).To(Succeed())
			g.Expect(job.Spec.HandoverSeconds()).To(Equal(c.want))
			g.Expect(graceSeconds(&job)).To(BeEquivalentTo(c.want+10), "and the pods' grace outlasts the hand-over")
		})
	}
}

// TestObjectsStoredBeforeAFieldExistedGoOn stores one under a schema that lacks the newer fields, in a group of its own.
func TestObjectsStoredBeforeAFieldExistedGoOn(t *testing.T) {
	p := newPlace(t)
	install := func(change func(spec map[string]apiextensionsv1.JSONSchemaProps)) {
		crd := readCRD(p.WithT)
		crd.Spec.Group, crd.Name, crd.Spec.Names.ShortNames = "old.example.com", "shardedjobs.old.example.com", nil
		change(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties)
		options := envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}
		_, err := envtest.InstallCRDs(shared.controlPlane.Config(), options)
		p.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = envtest.UninstallCRDs(shared.controlPlane.Config(), options) })
	}
	install(func(spec map[string]apiextensionsv1.JSONSchemaProps) {
		delete(spec["table"].Properties, "shardBy")
		delete(spec["fence"].Properties, "adoptAfterSeconds")
		delete(spec["fence"].Properties, "unreachablePods")
	})
	job := p.manifest("images", nil)
	job.SetAPIVersion("old.example.com/v1alpha1")
	p.Expect(p.client.Create(p.ctx, job)).To(Succeed())
	field := func(path ...string) func() any {
		return func() any {
			_ = p.client.Get(p.ctx, client.ObjectKeyFromObject(job), job)
			value, _, _ := unstructured.NestedFieldNoCopy(job.Object, path...)
			return value
		}
	}
	p.Expect(field("spec", "table", "shardBy")()).To(BeNil())

	install(func(map[string]apiextensionsv1.JSONSchemaProps) {})
	p.Eventually(field("spec", "table", "shardBy")).Should(Equal("Auto"))
	p.Expect(field("spec", "fence")()).To(HaveKeyWithValue("adoptAfterSeconds", BeEquivalentTo(30)))
	p.Expect(field("spec", "fence")()).To(HaveKeyWithValue("unreachablePods", "Keep"))
	unstructured.RemoveNestedField(job.Object, "spec", "table", "shardBy")
	p.Expect(unstructured.SetNestedField(job.Object, int64(3), "spec", "replicas")).To(Succeed())
	p.Expect(p.client.Update(p.ctx, job)).To(Succeed(), "whoever does not know the field leaves it out")
	p.Expect(field("spec", "replicas")()).To(BeEquivalentTo(3))
	p.Expect(unstructured.SetNestedField(job.Object, "Hash", "spec", "table", "shardBy")).To(Succeed())
	p.Expect(p.client.Update(p.ctx, job)).To(MatchError(ContainSubstring("table cannot be changed")))
}

// TestManifestsWorkWithKubectl applies what is installed the way a person does, client-side.
func TestManifestsWorkWithKubectl(t *testing.T) {
	p := newPlace(t)
	run := func(args ...string) string {
		command := exec.CommandContext(t.Context(), "kubectl", append([]string{"--kubeconfig", shared.controlPlane.Kubeconfig()}, args...)...)
		out, err := command.CombinedOutput()
		p.Expect(err).NotTo(HaveOccurred(), string(out))
		return string(out)
	}
	kubectl := func(args ...string) string { return run(append([]string{"-n", p.namespace}, args...)...) }
	sample := filepath.Join("..", "config", "samples", "shardedjob.yaml")
	run("apply", "-k", filepath.Join("..", "config", "default"))
	image := run("-n", "shardedjob-system", "get", "deployment", "shardedjob-controller-manager",
		"-o", "jsonpath={.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].value}")
	p.Expect(image).To(Equal("shardedjob.dev/shardedjob:dev shardedjob.dev/shardedjob:dev"))
	kubectl("apply", "-f", sample)
	kubectl("wait", "--for=condition=Ready", "--timeout=60s", "shardedjob/thumbnails")
	kubectl("scale", "--replicas=3", "sj/thumbnails")
	kubectl("wait", "--for=condition=Ready", "--timeout=60s", "sj/thumbnails")
	p.Expect(strings.Fields(strings.Split(kubectl("get", "sj"), "\n")[0])).To(Equal(
		[]string{"NAME", "TABLE", "REPLICAS", "SLOTS", "HELD", "DONE%", "ROWS/S", "STATUS", "AGE"}))
	p.Expect(kubectl("get", "sj", "--no-headers")).To(MatchRegexp(`^thumbnails +images +3 +3 +3 +0 +Running`))
	p.Expect(strings.Fields(strings.Split(kubectl("get", "sj", "-o", "wide"), "\n")[0])).To(ContainElement("ADOPTED"))
	explained := strings.Join(strings.Fields(kubectl("explain", "sj.spec.fence.unreachablePods")), " ") // kubectl breaks lines where it likes
	p.Expect(explained).To(And(ContainSubstring("ENUM:"), ContainSubstring("ForceDelete"), ContainSubstring("Its slot is adopted meanwhile")))
}

func readCRD(g *WithT) *apiextensionsv1.CustomResourceDefinition {
	raw, err := os.ReadFile(filepath.Join("..", "config", "crd", "bases", "shardedjob.dev_shardedjobs.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var crd apiextensionsv1.CustomResourceDefinition
	g.Expect(yaml.Unmarshal(raw, &crd)).To(Succeed())
	return &crd
}

func TestCRDFitsIntoAnAnnotation(t *testing.T) {
	g := NewWithT(t)
	raw, err := json.Marshal(readCRD(g))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(raw)).To(BeNumerically("<", 262144))
}

func TestEveryFieldOfOursIsExplained(t *testing.T) {
	g := NewWithT(t)
	var missing []string
	var walk func(path string, schema apiextensionsv1.JSONSchemaProps)
	walk = func(path string, schema apiextensionsv1.JSONSchemaProps) {
		if schema.Description == "" && path != "metadata" && !strings.HasSuffix(path, "[]") {
			missing = append(missing, path)
		}
		if path == "spec.template" {
			return // Kubernetes' own, and explained there
		}
		for name, property := range schema.Properties {
			walk(strings.TrimPrefix(path+"."+name, "."), property)
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			walk(path+"[]", *schema.Items.Schema)
		}
	}
	walk("", *readCRD(g).Spec.Versions[0].Schema.OpenAPIV3Schema)
	g.Expect(missing).To(BeEmpty())
}
