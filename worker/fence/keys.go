package fence

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A Group is a consumer group: the name under which progress is kept and locks are taken. Its hash, not its name, goes
// into lock keys, so that any name fits.
type Group struct {
	name string
	hash uint64
}

// NewGroup makes the group of a name, for example "media/thumbnails".
func NewGroup(name string) Group {
	sum := sha256.Sum256([]byte(name))
	return Group{name: name, hash: binary.BigEndian.Uint64(sum[:8])}
}

// Name is the group's name as it was given.
func (g Group) Name() string { return g.name }

// String is the group's name.
func (g Group) String() string { return g.name }

// Hash is the first 64 bits of the name's SHA-256. Sessions carry it in their application name.
func (g Group) Hash() uint64 { return g.hash }

// Class is the first 32 bits of the hash: the first half of every lock key of the group. Two groups that share it by
// chance block each other, visibly, and harm nothing, because sessions are compared by the whole hash.
func (g Group) Class() int32 { return int32(uint32(g.hash >> 32)) }

// Kind says what a lock means. It fills the top three bits of a key's object.
type Kind uint8

// The kinds of locks. The numbers are part of the protocol between workers of different versions and never change.
const (
	// KindSlot, exclusive: I alone work slot k.
	KindSlot Kind = 1
	// KindEpoch, shared: I work under the plan of this epoch, which has n slots.
	KindEpoch Kind = 2
	// KindIntent, exclusive: I am slot k's own worker and want it back from whoever adopted it.
	KindIntent Kind = 3
	// KindCoordinator, exclusive: I am the coordinator, or its deputy.
	KindCoordinator Kind = 4
	// KindOwner, shared: the job with this UID works for the group.
	KindOwner Kind = 5
	// KindConflict, shared, in the class of a table: this group works the rows of the table.
	KindConflict Kind = 6
)

var kindNames = map[Kind]string{
	KindSlot: "slot", KindEpoch: "epoch", KindIntent: "intent",
	KindCoordinator: "coordinator", KindOwner: "owner", KindConflict: "conflict",
}

// String is the kind's name, as people read it in messages.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Widths of the parts of a key's object.
const (
	valueBits = 29
	slotsBits = 10
	epochBits = valueBits - slotsBits

	valueMask = 1<<valueBits - 1

	// MaxSlots is the greatest number of slots that an epoch key can carry.
	MaxSlots = 1<<slotsBits - 1
	// MaxEpoch is the greatest epoch that an epoch key can carry.
	MaxEpoch = 1<<epochBits - 1
)

// Seats that a CoordinatorKey stands for.
const (
	SeatCoordinator = 0
	SeatDeputy      = 1
)

// A Key is a two-part advisory lock key. The two-part form lies in a key space of its own (objsubid 2 in pg_locks), apart
// from the application's one-part keys.
type Key struct {
	Class, Object int32
}

// String shows the key as pg_locks has it and what it means.
func (k Key) String() string {
	kind, value := k.Parse()
	return fmt.Sprintf("(%d, %d) %s %d", uint32(k.Class), uint32(k.Object), kind, value)
}

// Parse splits the key's object into kind and value.
func (k Key) Parse() (Kind, uint32) { return ParseObject(k.Object) }

// ParseObject splits the second half of a lock key into kind and value.
func ParseObject(object int32) (Kind, uint32) {
	return Kind(uint32(object) >> valueBits), uint32(object) & valueMask
}

func object(kind Kind, value uint32) int32 {
	return int32(uint32(kind)<<valueBits | value&valueMask)
}

// SlotKey is the key of slot k, from 0.
func SlotKey(g Group, k int32) Key { return Key{g.Class(), object(KindSlot, uint32(k))} }

// IntentKey is the key by which slot k's own worker asks for it.
func IntentKey(g Group, k int32) Key { return Key{g.Class(), object(KindIntent, uint32(k))} }

// CoordinatorKey is the key of a seat at the coordinator's desk: SeatCoordinator or SeatDeputy.
func CoordinatorKey(g Group, seat int) Key {
	return Key{g.Class(), object(KindCoordinator, uint32(seat))}
}

// OwnerKey is the key of the job with this UID, hashed to 29 bits.
func OwnerKey(g Group, uid string) Key {
	return Key{g.Class(), object(KindOwner, uint32(domainHash("owner", []byte(uid))>>(64-valueBits)))}
}

// ConflictKey is the key under which all groups that work a table meet. Its class comes from the table, so that one look
// shows them all; its object from the group. The OID, not the name, makes one physical table one key.
func ConflictKey(tableOID uint32, g Group) Key {
	return Key{ConflictClass(tableOID), object(KindConflict, uint32(g.hash>>(64-valueBits)))}
}

// ConflictClass is the class of a table's conflict locks.
func ConflictClass(tableOID uint32) int32 {
	return int32(uint32(domainHash("conflict", binary.BigEndian.AppendUint32(nil, tableOID)) >> 32))
}

// domainHash hashes data with a prefix that keeps apart what is hashed for different ends.
func domainHash(domain string, data []byte) uint64 {
	sum := sha256.Sum256(append([]byte("shardedjob.dev/"+domain+"\x00"), data...))
	return binary.BigEndian.Uint64(sum[:8])
}

// EpochKey is the key of plan (epoch, slots). The epoch is in the high bits, so that the values of two keys compare as
// integers like their plans: by epoch, then by slots. It fails at the limits rather than wrap around: an epoch that
// starts again at 0 would look older than the ones it replaces.
func EpochKey(g Group, epoch int64, slots int32) (Key, error) {
	m, err := newMark(epoch, slots)
	if err != nil {
		return Key{}, err
	}
	return m.key(g), nil
}

// A mark is the value of an epoch key: a plan as far as locks tell it.
type mark uint32

func newMark(epoch int64, slots int32) (mark, error) {
	if epoch < 1 || epoch > MaxEpoch {
		return 0, fmt.Errorf("epoch %d is outside 1 to %d, which is what a lock key can hold", epoch, MaxEpoch)
	}
	if slots < 0 || slots > MaxSlots {
		return 0, fmt.Errorf("%d slots are outside 0 to %d, which is what a lock key can hold", slots, MaxSlots)
	}
	return mark(uint32(epoch)<<slotsBits | uint32(slots)), nil
}

func (m mark) key(g Group) Key { return Key{g.Class(), object(KindEpoch, uint32(m))} }

func (m mark) epoch() int64 { return int64(m >> slotsBits) }
func (m mark) slots() int32 { return int32(m & MaxSlots) }

func (m mark) String() string { return fmt.Sprintf("epoch %d with %d slots", m.epoch(), m.slots()) }
