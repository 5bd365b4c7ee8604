// Package netns gives clients a machine of their own, as far as the network can tell: a network namespace, joined to this machine
// by a cable that can be cut. A cut cable carries nothing in either direction and tells nobody; both ends keep their links and
// routes, as machines do whose packets are lost somewhere between them.
//
//	cable := netns.ForTest(t)
//	config.DialFunc = cable.Dial             // a connection that leaves from inside
//	err := cable.Start(exec.Command(…))      // a whole process inside
//	cable.Cut(ctx)
//
// It needs root and iproute2. A namespace ends with the process that made it, and with the last one inside.
package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// inner is the name of the cable's end inside.
	inner = "eth0"
	// elsewhere is the hardware address to which a cut cable sends everything: nobody has it.
	elsewhere = "02:00:00:00:00:fe"
	// tries is how many addresses are looked at for free ones.
	tries = 20
)

// Block holds the addresses of both ends of every cable: what carriers use inside, so that hardly anybody else does here.
const Block = "100.64.0.0/10"

var block = netip.MustParsePrefix(Block)

// A Cable joins a network namespace to this machine. Its methods may be called from several goroutines.
type Cable struct {
	space   *os.File
	inside  chan func() // run on a thread that stays inside
	device  string      // the end outside
	outer   netip.Prefix
	address netip.Addr // inside
}

// New makes a namespace and the cable to it. The caller closes it.
func New(ctx context.Context) (*Cable, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a network namespace needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, errors.New("a network namespace needs the program ip (Debian: apt-get install iproute2)")
	}
	c := &Cable{inside: make(chan func()), device: fmt.Sprintf("cable%08x", rand.Uint32())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			c.space, err = os.Open("/proc/thread-self/ns/net")
		}
		entered <- err
		for f := range c.inside {
			f()
		}
	}()
	if err := <-entered; err != nil {
		close(c.inside)
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	if err := c.plugIn(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("laying a cable to a network namespace: %w", err), c.Close())
	}
	return c, nil
}

// plugIn lays the cable, under addresses that nobody else on this machine has.
func (c *Cable) plugIn(ctx context.Context) error {
	space := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.space.Fd())
	if err := ip(ctx, "link", "add", c.device, "type", "veth", "peer", "name", inner, "netns", space); err != nil {
		return err
	}
	if err := c.number(ctx); err != nil {
		return err
	}
	if err := ip(ctx, "link", "set", c.device, "up"); err != nil {
		return err
	}
	return c.within(func() error {
		for _, args := range [][]string{
			{"address", "add", netip.PrefixFrom(c.address, c.outer.Bits()).String(), "dev", inner},
			{"link", "set", inner, "up"},
			{"link", "set", "lo", "up"},
		} {
			if err := ip(ctx, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// number gives the end outside an address. Somebody else may take the same at the same moment: then both see it, and take others.
func (c *Cable) number(ctx context.Context) error {
	for range tries {
		network := block.Addr().As4()
		n := rand.Uint32N(1<<(30-block.Bits())) << 2
		network[1] |= byte(n >> 16)
		network[2], network[3] = byte(n>>8), byte(n)
		c.outer = netip.PrefixFrom(netip.AddrFrom4(network).Next(), 30)
		c.address = c.outer.Addr().Next()
		if err := ip(ctx, "address", "add", c.outer.String(), "dev", c.device); err != nil {
			return err
		}
		shared, err := taken(c.outer)
		if err != nil || !shared {
			return err
		}
		if err := ip(ctx, "address", "delete", c.outer.String(), "dev", c.device); err != nil {
			return err
		}
	}
	return fmt.Errorf("no free addresses found in %s", block)
}

// taken says whether more than one address of this machine is in a network.
func taken(network netip.Prefix) (bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	found := 0
	for _, address := range all {
		if other, err := netip.ParsePrefix(address.String()); err == nil && other.Overlaps(network.Masked()) {
			found++
		}
	}
	return found > 1, nil
}

// Outside is this machine's address, as seen from inside.
func (c *Cable) Outside() netip.Addr { return c.outer.Addr() }

// Inside is the namespace's address, as seen from this machine.
func (c *Cable) Inside() netip.Addr { return c.address }

// Start starts a command inside. A signal that it is to get when its parent ends comes when the cable is closed.
func (c *Cable) Start(cmd *exec.Cmd) error { return c.within(cmd.Start) }

// within runs f on the thread that stays inside.
func (c *Cable) within(f func() error) error {
	result := make(chan error)
	c.inside <- func() { result <- f() }
	return <-result
}

// Dial connects to an IP address from inside.
func (c *Cable) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good, since it does not come back from inside
		if err = unix.Setns(int(c.space.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}()
	<-done
	return conn, err
}

// Cut cuts the cable.
func (c *Cable) Cut(ctx context.Context) error {
	lose := func(peer netip.Addr, device string) error {
		return ip(ctx, "neighbor", "replace", peer.String(), "lladdr", elsewhere, "dev", device, "nud", "permanent")
	}
	return errors.Join(lose(c.address, c.device), c.within(func() error { return lose(c.Outside(), inner) }))
}

// Mend mends a cable that was cut.
func (c *Cable) Mend(ctx context.Context) error {
	find := func(peer netip.Addr, device string) error {
		return ip(ctx, "neighbor", "delete", peer.String(), "dev", device)
	}
	return errors.Join(find(c.address, c.device), c.within(func() error { return find(c.Outside(), inner) }))
}

// Close removes the cable, and the namespace once nobody is inside any more.
func (c *Cable) Close() error {
	err := ip(context.Background(), "link", "delete", c.device)
	close(c.inside)
	return errors.Join(err, c.space.Close())
}

// ForTest lays a cable for one test.
func ForTest(t testing.TB) *Cable {
	t.Helper()
	c, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("removing the cable: %v", err)
		}
	})
	return c
}

// ip runs iproute2 in the network namespace of the thread. What it says is in the error.
func ip(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "ip", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}
