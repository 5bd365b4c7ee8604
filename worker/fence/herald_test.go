package fence

import (
	"errors"
	"testing"
)

// Workers that have a slot in the new plan may all be cut off from the API server: the one that is not has none.
func TestHeraldTellsThoseOfOlderPlans(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	deaf, herald := open(t, uri, g, 0), open(t, uri, g, 1)
	enter(t, deaf, claim(g, 0, 1, 2))
	c := claim(g, 1, 2, 1)
	join(t, herald, c)
	done := make(chan error, 1)
	go func() { done <- herald.Herald(deadline(t), c, nil) }()
	eventually(t, "the deaf worker sees the newer plan", func() bool {
		newer, err := deaf.Superseded(deadline(t), claim(g, 0, 1, 2))
		return err == nil && newer != nil && newer.Epoch == 2 && newer.Slots == 1
	})
	select {
	case err := <-done:
		t.Fatalf("the herald went before the old plan was let go: %v", err)
	default:
	}
	if err := deaf.Leave(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if held := herald.Held(); len(held) != 1 { // the owner's
		t.Errorf("the herald keeps %v", held)
	}
	if err := herald.Herald(deadline(t), c, nil); err != nil {
		t.Errorf("with nobody to tell: %v", err)
	}
}

func TestHeraldYieldsToNewerPlans(t *testing.T) {
	uri, g := database(t), NewGroup("media/thumbnails")
	worker, herald := open(t, uri, g, 0), open(t, uri, g, 1)
	enter(t, worker, claim(g, 0, 3, 2))
	c := claim(g, 1, 2, 1)
	join(t, herald, c)
	var newer *SupersededError
	if err := herald.Herald(deadline(t), c, nil); !errors.As(err, &newer) || newer.Epoch != 3 {
		t.Errorf("got %v", err)
	}
}
