// Package planfeed brings the plan to the worker.
//
// A plan arrives on two ways: through a watch of one ConfigMap, at once, and through the same ConfigMap mounted as a
// volume, up to a minute later but also while the API server is away. A third source is the database: the epoch locks of
// other workers carry the epoch and the number of slots. A Feed keeps the newest of them all; nothing ever goes back.
package planfeed

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"shardedjob.dev/api/v1alpha1"
)

// Feed holds the newest plan of one job. It is safe for concurrent use.
type Feed struct {
	uid types.UID

	mu      sync.Mutex
	plan    *v1alpha1.Plan
	changed chan struct{}
}

// New makes an empty feed for the job with this UID. Plans of other jobs, such as a deleted one of the same name, are
// ignored.
func New(uid types.UID) *Feed {
	return &Feed{uid: uid, changed: make(chan struct{})}
}

// Current is the newest plan, and whether there is one yet.
func (f *Feed) Current() (v1alpha1.Plan, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan == nil {
		return v1alpha1.Plan{}, false
	}
	return *f.plan, true
}

// Changed is closed when the plan next changes. Take it before Current, so that no change is missed.
func (f *Feed) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Offer hands in a plan and says whether it is news.
func (f *Feed) Offer(p v1alpha1.Plan) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.UID != f.uid || (f.plan != nil && !p.Newer(*f.plan)) {
		return false
	}
	f.set(p)
	return true
}

// Follow takes over a partition that the locks of other workers show. The rest of the plan stays as it is, until a
// plan of that epoch arrives. It says whether that was news.
func (f *Feed) Follow(epoch int64, slots int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan == nil || epoch <= f.plan.Epoch {
		return false
	}
	p := *f.plan
	p.Epoch, p.Slots = epoch, slots
	// A real plan of this epoch has at least generation 1, so it replaces this one, whatever its generation.
	p.Generation = 0
	f.set(p)
	return true
}

func (f *Feed) set(p v1alpha1.Plan) {
	f.plan = &p
	close(f.changed)
	f.changed = make(chan struct{})
}
