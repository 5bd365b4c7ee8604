package planfeed

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"shardedjob.dev/api/v1alpha1"
)

func plan(epoch, generation int64, slots int32) v1alpha1.Plan {
	return v1alpha1.Plan{
		FormatVersion: v1alpha1.PlanFormatVersion, UID: "uid", Group: "g", Epoch: epoch, Generation: generation, Slots: slots,
		HandoverSeconds: 30, AdoptAfterSeconds: 30, Process: v1alpha1.ProcessSpec{SQL: &v1alpha1.SQLProcess{Statement: "x"}},
		Batch: v1alpha1.BatchSpec{Rows: 1, TimeoutSeconds: 1}, Failure: v1alpha1.FailureSpec{MaxAttempts: 1},
	}
}

func TestFeedKeepsTheNewest(t *testing.T) {
	other := plan(9, 9, 9)
	other.UID = "another job of this name"
	tests := map[string]struct {
		offer v1alpha1.Plan
		news  bool
	}{
		"a higher epoch":                 {plan(4, 1, 2), true},
		"the same epoch, newer spec":     {plan(3, 8, 2), true},
		"the same again":                 {plan(3, 7, 2), false},
		"an older spec":                  {plan(3, 6, 2), false},
		"an older epoch of a newer spec": {plan(2, 9, 2), false},
		"another job's":                  {other, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := New("uid")
			f.Offer(plan(3, 7, 2))
			changed := f.Changed()
			if got := f.Offer(tt.offer); got != tt.news {
				t.Errorf("Offer = %v, want %v", got, tt.news)
			}
			select {
			case <-changed:
				if !tt.news {
					t.Error("a change was told that is none")
				}
			default:
				if tt.news {
					t.Error("the change was not told")
				}
			}
		})
	}
}

func TestFollowGivesWayToTheRealPlan(t *testing.T) {
	f := New("uid")
	if f.Follow(5, 3) {
		t.Error("followed without a plan to take the rest from")
	}
	f.Offer(plan(3, 7, 2))
	if f.Follow(3, 9) {
		t.Error("followed another slot count of the same epoch")
	}
	if !f.Follow(5, 3) {
		t.Error("did not follow a higher epoch")
	}
	if p, _ := f.Current(); p.Epoch != 5 || p.Slots != 3 || p.Process.SQL.Statement != "x" || p.Generation != 0 {
		t.Errorf("followed to %+v", p)
	}
	if !f.Offer(plan(5, 1, 3)) {
		t.Error("the real plan of the followed epoch was refused")
	}
}

// Whatever comes in whichever order, the feed never goes back.
func TestFeedIsMonotonic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New("uid")
		last := plan(0, 0, 0)
		for range rapid.IntRange(1, 30).Draw(t, "offers") {
			epoch, generation := rapid.Int64Range(1, 5).Draw(t, "epoch"), rapid.Int64Range(1, 5).Draw(t, "generation")
			if rapid.Bool().Draw(t, "follow") {
				f.Follow(epoch, 3)
			} else {
				f.Offer(plan(epoch, generation, 2))
			}
			if now, ok := f.Current(); ok {
				if last.Newer(now) {
					t.Fatalf("went back from epoch %d generation %d to %d %d", last.Epoch, last.Generation, now.Epoch, now.Generation)
				}
				last = now
			}
		}
	})
}

func TestWatchFile(t *testing.T) {
	f := New("uid")
	path := filepath.Join(t.TempDir(), v1alpha1.PlanKey)
	go WatchFile(t.Context(), f, path, slog.New(slog.DiscardHandler))
	for _, want := range []int64{1, 2} {
		changed := f.Changed()
		data, err := v1alpha1.EncodePlan(plan(want, 1, 2))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data[v1alpha1.PlanKey]), 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatal("the file's plan does not arrive")
		}
		if p, _ := f.Current(); p.Epoch != want {
			t.Errorf("epoch %d, want %d", p.Epoch, want)
		}
	}
}

// refusal is a way to an API server that is not there.
type refusal struct{}

func (refusal) RoundTrip(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }

// A worker that has to stop does not wait for an API server that has been away for long.
func TestL11WatchEndsWhileTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://api.example", Transport: refusal{}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		if err := WatchAPI(ctx, New("uid"), client, "default", "job-plan", slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 10*time.Minute {
			t.Errorf("it ended after %s, want 10 minutes", took)
		}
		time.Sleep(2 * time.Minute) // of the bubble: for the informer to wake up and see that it is over
	})
}
