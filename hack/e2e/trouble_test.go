//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"shardedjob.dev/hack/image"
)

// template sets the image of the workers.
func template(image string) string {
	return "  template: {spec: {containers: [{name: worker, image: \"" + image + "\"}]}}\n"
}

// TestL02BadImageThenGoodImage recovers without hand work.
func TestL02BadImageThenGoodImage(t *testing.T) {
	t.Parallel()
	j := newJob(t, 20_000, quick)
	j.more = template("shardedjob.dev/no-such-image:v1")
	j.apply()
	j.Eventually(func() string { return j.condition("Ready") }).Should(And(HavePrefix("False PodsMissing"), ContainSubstring("no-such-image")))
	j.more = template(image.Project().Name)
	j.apply()
	j.expectExactlyOnce()
}

// TestMissingSecret goes on when the Secret comes.
func TestMissingSecret(t *testing.T) {
	t.Parallel()
	j := newJob(t, 20_000, quick)
	j.kubectl("delete", "secret", "db")
	j.apply()
	j.Eventually(func() string { return j.condition("Stalled") }).WithTimeout(time.Minute).Should(And(HavePrefix("True InvalidSecret"), ContainSubstring("db")))
	created := time.Now()
	j.createSecret(j.uri)
	j.await("Complete")
	figure(t, "from creation of a missing Secret to Complete: %.0f s", time.Since(created).Seconds())
	j.expectExactlyOnce()
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	j := newJob(t, 20_000, quick)
	j.kubectl("delete", "secret", "db")
	j.createSecret(strings.Replace(j.uri, "@", "x@", 1))
	j.apply()
	j.Eventually(func() string { return j.condition("Stalled") }).Should(HavePrefix("True AuthFailed"))
	j.Expect(j.condition("Ready")).To(HavePrefix("False Stalled"))
	password, _, _ := strings.Cut(j.uri[strings.LastIndexByte(j.uri[:strings.IndexByte(j.uri, '@')], ':')+1:], "@")
	j.Expect(j.kubectl("describe", "sj/work")).NotTo(ContainSubstring(password))
	j.kubectl("delete", "secret", "db")
	j.createSecret(j.uri)
	j.await("Complete")
	j.expectExactlyOnce()
}

// TestQuota quotes the API server, works with the pods that exist, and goes on when the quota does.
func TestQuota(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.kubectl("create", "quota", "few", "--hard=pods=2")
	j.apply()
	j.scale(4)
	j.Eventually(func() string { return j.condition("Ready") }).WithTimeout(time.Minute).Should(And(HavePrefix("False"), ContainSubstring("exceeded quota: few")))
	j.kubectl("delete", "quota", "few")
	j.finish()
}

// TestRowsFailing never becomes Complete while a row fails.
func TestRowsFailing(t *testing.T) {
	t.Parallel()
	j := newJob(t, 20_000, "UPDATE items SET done = (1000 / (id - 77))::text WHERE id = ANY($1)")
	j.more = "  failure: {maxAttempts: 2}\n"
	j.start(2)
	j.Eventually(func() string { return j.condition("Stalled") }).Should(And(HavePrefix("True RowsFailing"), ContainSubstring("division by zero")))
	j.Expect(j.condition("Complete")).To(HavePrefix("False"))
	j.expectOnce("id <> 77")
	j.Expect(j.get().Status.Progress.Failed).To(BeEquivalentTo(1))

	j.statement = quick // a person acts
	j.apply()
	j.expectExactlyOnce()
}

// TestWhatPeopleRead looks at what kubectl prints for a person.
func TestWhatPeopleRead(t *testing.T) {
	t.Parallel()
	j := newJob(t, 300_000, slow)
	j.start(2)
	j.Eventually(func() string { return j.kubectl("get", "sj") }).Should(And(
		MatchRegexp(`NAME +TABLE +REPLICAS +SLOTS +HELD +DONE% +ROWS/S +STATUS +AGE`), MatchRegexp(`work +items +2 +2 +2 +\d+ +\d+ +Running`)))
	j.Expect(j.kubectl("get", "shardedjobs,pods")).To(And(ContainSubstring("shardedjob.shardedjob.dev/work"), ContainSubstring("pod/work-1")))
	j.Expect(j.kubectl("get", "all")).To(ContainSubstring("shardedjob.shardedjob.dev/work"))
	described := j.kubectl("describe", "sj/work")
	for _, words := range []string{"All 2 slots are held under epoch", "Coordinator:", "Rows Per Second:", "Estimated Completion Time:", "RepartitionFinished"} {
		j.Expect(described).To(ContainSubstring(words))
	}
	j.Expect(j.kubectl("logs", "work-0")).To(ContainSubstring("Slot taken"))

	// What a running job costs the API server.
	writes := map[string]int{}
	last := map[string]string{}
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		for line := range strings.Lines(j.kubectl("get", "sj/work", "configmap/work-plan", "configmap/work-report", "statefulset/work",
			"-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)) {
			name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
			if last[name] != "" && last[name] != version {
				writes[name]++
			}
			last[name] = version
		}
	}
	for name, n := range writes {
		figure(t, "API writes of a running job with 2 workers to %s: %d in a minute", name, 3*n)
	}
	for field, words := range map[string]string{
		"":                       "ShardedJob runs one function over every row",
		".spec.table.pending":    "true while a row still needs work",
		".spec.process.sql":      "statement",
		".spec.replicas":         "0 pauses the job",
		".status.conditions":     "Ready",
		".spec.template.spec":    "containers",
		".spec.batch":            "timeoutSeconds",
		".spec.database.uriKey":  "connection URI",
		".status.progress":       "rowsPerSecond",
		".spec.fence":            "handoverSeconds",
		".spec.failure":          "maxAttempts",
		".status.slots.state":    "what is going on",
		".spec.database":         "secretName",
		".status.coordinator":    "speaks for all workers",
		".spec.consumerGroup":    "conflict",
		".spec.suspend":          "next batch boundary",
		".status.repartition.to": "slots wanted",
	} {
		// kubectl breaks lines where it likes.
		j.Expect(strings.Join(strings.Fields(j.kubectl("explain", "shardedjob"+field)), " ")).To(ContainSubstring(words), field)
	}
	j.finish()
}

// TestIdleWritesNothing leaves a complete job alone for a while.
func TestIdleWritesNothing(t *testing.T) {
	t.Parallel()
	done := newJob(t, 2_000, quick)
	done.apply()
	done.expectExactlyOnce()
	versions := func() string {
		return done.kubectl("get", "sj/work", "configmap/work-plan", "configmap/work-report", "statefulset/work", "-o",
			`jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{"\n"}{end}`)
	}
	// What completion itself brings about comes to rest first.
	before := versions()
	restless := time.Now()
	done.Eventually(func() time.Duration {
		if now := versions(); now != before {
			before, restless = now, time.Now()
		}
		return time.Since(restless)
	}).WithPolling(time.Second).Should(BeNumerically(">", 10*time.Second))
	done.Consistently(versions).WithTimeout(65 * time.Second).WithPolling(5 * time.Second).Should(Equal(before))
	figure(t, "API writes of a complete job in 65 s: 0")
}
