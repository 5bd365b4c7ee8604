package database

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitSilence bounds how long what was sent may stay unacknowledged. Linux goes by it for keepalives too.
func limitSilence(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var refused error
	err := c.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return refused
}
