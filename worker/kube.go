package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/worker/internal/sleep"
)

// reportStore is the report ConfigMap. The operator made it; workers only patch it, by a merge patch: server-side apply
// would keep a list of managed fields for each of a thousand workers.
type reportStore struct {
	client          kubernetes.Interface
	namespace, name string

	// version that the coordinator has seen. Only the coordinator's goroutine uses it.
	version string
}

// Load returns the ConfigMap's data, for the coordinator that takes over.
func (s *reportStore) Load(ctx context.Context) (map[string]string, error) {
	cm, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	s.version = cm.ResourceVersion
	return cm.Data, nil
}

// Save writes the keys given, unless somebody has written since the coordinator last looked: a coordinator that was frozen
// in the middle of a report must not overwrite its successor's.
func (s *reportStore) Save(ctx context.Context, data map[string]string) error {
	cm, err := s.patch(ctx, map[string]any{"metadata": map[string]string{"resourceVersion": s.version}, "data": data})
	if err != nil {
		return err
	}
	s.version = cm.ResourceVersion
	return nil
}

// set writes one key, or removes it if value is nil.
func (s *reportStore) set(ctx context.Context, key string, value *string) error {
	_, err := s.patch(ctx, map[string]any{"data": map[string]*string{key: value}})
	return err
}

func (s *reportStore) get(ctx context.Context) (*corev1.ConfigMap, error) {
	cm, err := s.client.CoreV1().ConfigMaps(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	return cm, nil
}

func (s *reportStore) patch(ctx context.Context, patch any) (*corev1.ConfigMap, error) {
	raw, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode the report: %w", err)
	}
	cm, err := s.client.CoreV1().ConfigMaps(s.namespace).Patch(ctx, s.name, types.MergePatchType, raw, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	return cm, nil
}

const (
	// noticeJitter spreads the notices of workers that have all lost the database at the same moment.
	noticeJitter = 3 * time.Second
	// noticeRetry is the pause after a notice that could not be written.
	noticeRetry = 10 * time.Second
	// apiTimeout bounds a call to the API server.
	apiTimeout = 10 * time.Second
)

// noticeBoard writes what keeps this worker from the database into its own key of the report, once per change, and takes it
// down when that is over. A coordinator cannot do it: without the database there is none.
type noticeBoard struct {
	store   *reportStore
	ordinal int32
	pod     string
	uid     types.UID
	log     *slog.Logger

	mu     sync.Mutex
	want   *v1alpha1.Problem
	change chan struct{}
}

func newNoticeBoard(store *reportStore, ordinal int32, pod string, uid types.UID, log *slog.Logger) *noticeBoard {
	b := &noticeBoard{store: store, ordinal: ordinal, pod: pod, uid: uid, log: log, change: make(chan struct{}, 1)}
	// A predecessor of this pod may have left a notice behind.
	b.change <- struct{}{}
	return b
}

// post puts up a notice, or takes it down if p is nil.
func (b *noticeBoard) post(p *v1alpha1.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if equalProblems(b.want, p) {
		return
	}
	b.want = p
	select {
	case b.change <- struct{}{}:
	default:
	}
}

// run keeps the board as it should be until the context ends, and then takes the notice down.
func (b *noticeBoard) run(ctx context.Context) {
	shown := &v1alpha1.Problem{} // not known
	for {
		select {
		case <-ctx.Done():
			if shown != nil && shown.Reason != "" {
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				_ = b.write(last, nil) // the pod goes; the operator ignores notices of pods that are gone
			}
			return
		case <-b.change:
		}
		if !sleep.For(ctx, rand.N(noticeJitter)) {
			continue
		}
		b.mu.Lock()
		want := b.want
		b.mu.Unlock()
		if equalProblems(shown, want) {
			continue
		}
		if err := b.write(ctx, want); err != nil {
			b.log.Warn("Cannot write the notice", "error", err)
			if sleep.For(ctx, noticeRetry) {
				b.again()
			}
			continue
		}
		shown = want
	}
}

func (b *noticeBoard) again() {
	select {
	case b.change <- struct{}{}:
	default:
	}
}

func (b *noticeBoard) write(ctx context.Context, p *v1alpha1.Problem) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	key := v1alpha1.NoticeKey(b.ordinal)
	if p == nil {
		cm, err := b.store.get(ctx)
		if err != nil {
			return err
		}
		if _, up := cm.Data[key]; !up {
			return nil // nothing to take down, so nothing to write
		}
		return b.store.set(ctx, key, nil)
	}
	raw, err := json.Marshal(v1alpha1.Notice{Pod: b.pod, UID: b.uid, Problem: *p})
	if err != nil {
		return fmt.Errorf("encode the notice: %w", err)
	}
	text := string(raw)
	return b.store.set(ctx, key, &text)
}

func equalProblems(a, b *v1alpha1.Problem) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}
