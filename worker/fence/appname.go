package fence

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxName is what PostgreSQL keeps of an application name, in bytes.
const maxName = 63

// ApplicationName is the name that a worker's session shows in pg_stat_activity:
// "sj:<16 hex of the group's hash>:<ordinal>:<8 hex of the pod's UID> <namespace>/<name>". It is how workers tell
// sessions of their group, which they may end, from strangers. The part after the blank is for people and is cut.
func ApplicationName(g Group, ordinal int32, podUID, job string) string {
	name := fmt.Sprintf("sj:%016x:%d:%s %s", g.Hash(), ordinal, uidPrefix(podUID), printableASCII(job))
	for len(name) > maxName {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// uidPrefix is the first eight hex digits of a UID, filled up with zeros.
func uidPrefix(uid string) string {
	hex := strings.Map(func(r rune) rune {
		if strings.ContainsRune("0123456789abcdef", r) {
			return r
		}
		return -1
	}, strings.ToLower(uid))
	return (hex + "00000000")[:8]
}

// printableASCII replaces what PostgreSQL would replace in an application name.
func printableASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// An Identity is what an application name says about the session that carries it.
type Identity struct {
	// GroupHash is the hash of the session's group.
	GroupHash uint64
	// Ordinal of the pod.
	Ordinal int32
	// PodUID is the first eight hex digits of the pod's UID.
	PodUID string
	// Job is the job's namespace and name, possibly cut; for people only.
	Job string
}

// ParseApplicationName reads an application name back; ok is false for one that is not a worker's.
func ParseApplicationName(name string) (id Identity, ok bool) {
	head, job, _ := strings.Cut(name, " ")
	parts := strings.Split(head, ":")
	if len(parts) != 4 || parts[0] != "sj" || len(parts[1]) != 16 || len(parts[3]) != 8 {
		return Identity{}, false
	}
	hash, err := strconv.ParseUint(parts[1], 16, 64)
	if err != nil {
		return Identity{}, false
	}
	ordinal, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil || ordinal < 0 {
		return Identity{}, false
	}
	return Identity{GroupHash: hash, Ordinal: int32(ordinal), PodUID: parts[3], Job: job}, true
}

// Pod is the name by which people know the session's pod, for example "thumbnails-2".
func (id Identity) Pod() string {
	_, name, found := strings.Cut(id.Job, "/")
	if !found {
		name = id.Job
	}
	if name == "" {
		return fmt.Sprintf("worker %d", id.Ordinal)
	}
	return fmt.Sprintf("%s-%d", name, id.Ordinal)
}
