package controllers

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"shardedjob.dev/api/v1alpha1"
)

// gate stands between a process and the API server. It stops the process as SIGSTOP does: nothing is sent or received, and
// afterwards everything goes on as if no time had passed.
type gate struct {
	mu      sync.Mutex
	open    chan struct{} // closed while everything may pass
	trap    func(*http.Request) bool
	stopped chan struct{} // closed once the process is stopped
	answer  chan int      // the status of the answer to the request that it was stopped at
}

func newGate() *gate {
	open := make(chan struct{})
	close(open)
	return &gate{open: open}
}

// stopAt stops the process when it is about to send the request.
func (g *gate) stopAt(method, path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped, g.answer = make(chan struct{}), make(chan int, 1)
	g.trap = func(req *http.Request) bool { return req.Method == method && strings.HasSuffix(req.URL.Path, path) }
}

func (g *gate) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// pass waits until the process runs. It says whether the request was what stopped it.
func (g *gate) pass(req *http.Request) bool {
	g.mu.Lock()
	caught := req != nil && g.trap != nil && g.trap(req)
	if caught {
		g.trap, g.open = nil, make(chan struct{})
		close(g.stopped)
	}
	open := g.open
	g.mu.Unlock()
	<-open
	return caught
}

func (g *gate) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		caught := g.pass(req)
		if caught {
			// A process that was stopped does not know yet that its time is over.
			req = req.WithContext(context.WithoutCancel(req.Context()))
		}
		response, err := next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		if caught {
			g.answer <- response.StatusCode
		}
		response.Body = &gatedBody{response.Body, g}
		return response, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type gatedBody struct {
	io.ReadCloser
	gate *gate
}

func (b *gatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.gate.pass(nil)
	return n, err
}

// candidate is an operator that stands for election.
type candidate struct {
	*operator
	*gate
}

func (p *place) stand() *candidate {
	c := &candidate{gate: newGate()}
	var err error
	c.operator, err = startOperator(testImage, func(cfg *rest.Config, options *ctrl.Options) {
		cfg.Wrap(c.wrap)
		election := shared.controlPlane.Config()
		election.Wrap(c.wrap)
		namespaced := ManagerOptions([]string{p.namespace})
		options.Cache = namespaced.Cache
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = true, "operator", p.namespace
		options.LeaderElectionConfig = election
		options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = ptr.To(4*time.Second), ptr.To(3*time.Second), ptr.To(500*time.Millisecond)
	})
	p.Expect(err).NotTo(HaveOccurred())
	return c
}

// TestN01AnOldLeaderMakesNoSecondStep stops the leader in the middle of each kind of write, until another has taken over and
// gone further, and lets it go on.
func TestN01AnOldLeaderMakesNoSecondStep(t *testing.T) {
	p := newPlace(t)
	shared.operator.stop()
	leader, other := p.stand(), p.stand()
	t.Cleanup(func() {
		for _, c := range []*candidate{leader, other} {
			c.resume()
			c.stop()
		}
		next, err := startOperator(testImage)
		p.Expect(err).NotTo(HaveOccurred())
		shared.operator = next
	})
	for _, round := range []struct {
		method, path string
		change       func()
		scaled, next int32
	}{
		{http.MethodPost, "/configmaps", func() { p.create("images", 2) }, 2, 3},
		{http.MethodPut, "/configmaps/images-plan", func() { p.scale(1) }, 1, 4},
		{http.MethodPatch, "/statefulsets/images", func() { p.scale(2) }, 2, 3},
		{http.MethodPatch, "/shardedjobs/images/status", func() { p.scale(5) }, 5, 2},
		{http.MethodPatch, "/statefulsets/images", func() {
			p.Expect(p.client.Delete(p.ctx, &appsv1.StatefulSet{ObjectMeta: p.job("images", 0).ObjectMeta})).To(Succeed())
		}, 2, 4},
	} {
		t.Log(round.method, round.path)
		p.Eventually(func() bool {
			select {
			case <-other.elected:
				leader, other = other, leader
			case <-leader.elected:
			default:
				return false
			}
			return true
		}).Should(BeTrue())
		leader.stopAt(round.method, round.path)
		round.change()
		p.Eventually(leader.stopped).Should(BeClosed())
		p.Eventually(other.elected).Should(BeClosed())
		p.awaitReady("images", round.scaled)
		p.scale(round.next)
		p.awaitReady("images", round.next)
		before := p.plan()
		var set, after appsv1.StatefulSet
		p.Expect(p.get(&set, "images")).To(Succeed())

		leader.resume()
		p.Eventually(leader.answer).Should(Receive(Equal(http.StatusConflict)))
		var err error
		p.Eventually(leader.done).Should(Receive(&err))
		p.Expect(err).To(MatchError("leader election lost"))
		leader.done <- nil // for the end of the test
		p.Expect(p.plan()).To(Equal(before))
		p.Expect(p.get(&after, "images")).To(Succeed())
		p.Expect(after.Generation).To(Equal(set.Generation))
		p.Expect(p.condition("images", v1alpha1.ConditionReady)()).To(HavePrefix("True Running"))
		leader = p.stand()
	}
}
