package netns

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listen serves an echo on this machine's end of the cable.
func listen(t *testing.T, c *Cable) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(c.Outside().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

// echo sends a word and waits for it, no longer than so.
func echo(t *testing.T, conn net.Conn, limit time.Duration) error {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "word"); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 4))
	return err
}

func TestCableIsCutAndMended(t *testing.T) {
	t.Parallel()
	c, other := ForTest(t), ForTest(t)
	conn, err := c.Dial(t.Context(), "tcp", listen(t, c))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if from := netip.MustParseAddrPort(conn.LocalAddr().String()).Addr(); from != c.Inside() {
		t.Errorf("the connection comes from %s, not from %s inside", from, c.Inside())
	}
	if err := echo(t, conn, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := echo(t, conn, 500*time.Millisecond); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("over a cut cable: %v", err)
	}
	beside, err := other.Dial(t.Context(), "tcp", listen(t, other))
	if err != nil {
		t.Fatalf("the cable beside it is cut too: %v", err)
	}
	_ = beside.Close()
	if err := c.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		t.Errorf("what was sent over the cut cable does not arrive when it is mended: %v", err)
	}
}

func TestProcessInside(t *testing.T) {
	t.Parallel()
	c := ForTest(t)
	var out bytes.Buffer
	cmd := exec.Command("ip", "-brief", "address", "show", "up")
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), c.Inside().String()) || strings.Contains(out.String(), c.Outside().String()) {
		t.Errorf("a process inside sees\n%s", out.String())
	}
}

func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	c, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName(c.device); err == nil {
		t.Errorf("%s is still there", c.device)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	t.Setenv("PATH", os.DevNull)
	if _, err := New(t.Context()); err == nil || !strings.Contains(err.Error(), "iproute2") {
		t.Errorf("got %v", err)
	}
}
