package fence

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestA05GoldenKeys: workers of two versions must take the same keys, so none of these may ever change.
func TestA05GoldenKeys(t *testing.T) {
	g := NewGroup("media/thumbnails")
	epoch, err := EpochKey(g, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		got  Key
		want Key
	}{
		{"slot 0", SlotKey(g, 0), Key{-1374686877, 0x20000000}},
		{"slot 999", SlotKey(g, 999), Key{-1374686877, 0x200003e7}},
		{"epoch 3 of 4", epoch, Key{-1374686877, 0x40000c04}},
		{"intent 7", IntentKey(g, 7), Key{-1374686877, 0x60000007}},
		{"coordinator", CoordinatorKey(g, SeatCoordinator), Key{-1374686877, math.MinInt32}},
		{"deputy", CoordinatorKey(g, SeatDeputy), Key{-1374686877, math.MinInt32 + 1}},
		{"owner", OwnerKey(g, "5f1c7a34-0000-4000-8000-000000000001"), Key{-1374686877, -1282693753}},
		{"conflict", ConflictKey(16384, g), Key{-1362678931, -708706772}},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %#v, want %#v", tc.name, tc.got, tc.want)
		}
	}
	if g.Hash() != 0xae0ff16341f67f56 {
		t.Errorf("hash %#x", g.Hash())
	}
}

func TestEpochKeyRefusesAtTheLimit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		epoch int64
		slots int32
		bad   bool
	}{
		{"first", 1, 1, false},
		{"paused", 1, 0, false},
		{"greatest", MaxEpoch, MaxSlots, false},
		{"epoch 0", 0, 1, true},
		{"epoch negative", -1, 1, true},
		{"epoch too great", MaxEpoch + 1, 1, true},
		{"epoch of 64 bits", math.MaxInt64, 1, true},
		{"slots negative", 1, -1, true},
		{"slots too many", 1, MaxSlots + 1, true},
	} {
		if _, err := EpochKey(NewGroup("g"), tc.epoch, tc.slots); (err != nil) != tc.bad {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestEpochKeysCompareLikePlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e1, e2 := rapid.Int64Range(1, MaxEpoch).Draw(t, "e1"), rapid.Int64Range(1, MaxEpoch).Draw(t, "e2")
		n1, n2 := rapid.Int32Range(0, MaxSlots).Draw(t, "n1"), rapid.Int32Range(0, MaxSlots).Draw(t, "n2")
		g := NewGroup(rapid.String().Draw(t, "group"))
		k1, err1 := EpochKey(g, e1, n1)
		k2, err2 := EpochKey(g, e2, n2)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		kind, v1 := k1.Parse()
		_, v2 := k2.Parse()
		if kind != KindEpoch || mark(v1).epoch() != e1 || mark(v1).slots() != n1 {
			t.Fatalf("%v came back as %s", k1, mark(v1))
		}
		newer := e1 > e2 || e1 == e2 && n1 > n2
		if (v1 > v2) != newer {
			t.Fatalf("%s and %s compare wrongly", mark(v1), mark(v2))
		}
	})
}

func TestKeysOfOneGroupAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGroup(rapid.String().Draw(t, "group"))
		seen := map[Key]string{}
		add := func(name string, k Key, want Kind, value int64) {
			kind, v := k.Parse()
			if kind != want || value >= 0 && int64(v) != value {
				t.Fatalf("%s came back as %s %d", name, kind, v)
			}
			if other, ok := seen[k]; ok && other != name {
				t.Fatalf("%s and %s have one key", name, other)
			}
			seen[k] = name
		}
		slot := rapid.Int32Range(0, MaxSlots).Draw(t, "slot")
		add("slot", SlotKey(g, slot), KindSlot, int64(slot))
		add("intent", IntentKey(g, slot), KindIntent, int64(slot))
		add("coordinator", CoordinatorKey(g, SeatCoordinator), KindCoordinator, 0)
		add("deputy", CoordinatorKey(g, SeatDeputy), KindCoordinator, 1)
		add("owner", OwnerKey(g, rapid.String().Draw(t, "uid")), KindOwner, -1)
		add("conflict", ConflictKey(rapid.Uint32().Draw(t, "oid"), g), KindConflict, -1)
	})
}

func TestApplicationName(t *testing.T) {
	g := NewGroup("media/thumbnails")
	for _, tc := range []struct {
		name, uid, job, want string
		ordinal              int32
	}{
		{"plain", "5f1c7a34-90ab-4cde-8000-000000000001", "media/thumbnails", "sj:ae0ff16341f67f56:2:5f1c7a34 media/thumbnails", 2},
		{"cut", "5F1C7A34", "a-namespace-of-some-length/thumbnails", "sj:ae0ff16341f67f56:999:5f1c7a34 a-namespace-of-some-length/thu", 999},
		{"short uid", "ab", "x/y", "sj:ae0ff16341f67f56:0:ab000000 x/y", 0},
		{"not ASCII", "ab", "é/\ny", "sj:ae0ff16341f67f56:0:ab000000 ?/?y", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ApplicationName(g, tc.ordinal, tc.uid, tc.job)
			if got != tc.want || len(got) > 63 {
				t.Fatalf("got %q (%d bytes), want %q", got, len(got), tc.want)
			}
			id, ok := ParseApplicationName(got)
			if !ok || id.GroupHash != g.Hash() || id.Ordinal != tc.ordinal {
				t.Fatalf("came back as %+v, %v", id, ok)
			}
		})
	}
}

func TestApplicationNameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGroup(rapid.String().Draw(t, "group"))
		ordinal := rapid.Int32Range(0, MaxSlots).Draw(t, "ordinal")
		name := ApplicationName(g, ordinal, rapid.String().Draw(t, "uid"), rapid.String().Draw(t, "job"))
		id, ok := ParseApplicationName(name)
		if !ok || id.GroupHash != g.Hash() || id.Ordinal != ordinal || len(name) > 63 {
			t.Fatalf("%q came back as %+v, %v", name, id, ok)
		}
	})
}

func TestStrangersNamesAreNotOurs(t *testing.T) {
	hex := strings.Repeat("a", 16)
	for _, name := range []string{"", "psql", "sj:", "sj:" + hex, "sj:" + hex + ":1", "sj:" + hex + ":x:12345678 a/b",
		"sj:" + hex + ":-1:12345678 a/b", "sj:" + strings.Repeat("z", 16) + ":1:12345678", "sk:" + hex + ":1:12345678"} {
		if id, ok := ParseApplicationName(name); ok {
			t.Errorf("%q was read as %+v", name, id)
		}
	}
}
