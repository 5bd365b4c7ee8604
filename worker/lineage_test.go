package worker

import (
	"errors"
	"fmt"
	"testing"
)

func TestLineage(t *testing.T) {
	type server struct {
		system   string
		timeline int64
		refused  bool
	}
	for name, servers := range map[string][]server{
		"one server":                   {{"a", 1, false}, {"a", 1, false}},
		"a promotion":                  {{"a", 1, false}, {"a", 2, false}, {"a", 2, false}},
		"back to the old primary":      {{"a", 1, false}, {"a", 3, false}, {"a", 1, true}, {"a", 2, true}, {"a", 3, false}},
		"moved to another cluster":     {{"a", 7, false}, {"b", 1, false}, {"b", 1, false}},
		"the very first is the oldest": {{"a", 1, false}},
	} {
		var l lineage
		for i, s := range servers {
			err := l.met(s.system, s.timeline)
			var succeeded *succeededError
			if errors.As(err, &succeeded) != s.refused {
				t.Errorf("%s, %s: %v", name, fmt.Sprint(i, s), err)
			}
		}
	}
}
