package database

import (
	"net"
	"time"
)

const (
	// silence is for how long the server's machine may leave unacknowledged what was sent to it. It acknowledges for a
	// server that is busy too, so that a longer silence means that the way to it is cut.
	silence = 9 * time.Second
	// askAfter and askEvery are when a connection asks for a sign of life: first, and again.
	askAfter = 4 * time.Second
	askEvery = 2 * time.Second
)

// dialer connects so that a way that is cut breaks the connection within about ten seconds, also while the worker waits for
// the end of a long statement: fence does the same for the server's side.
func dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: askAfter, Interval: askEvery, Count: int(silence / askEvery)},
		Control:         limitSilence,
	}
}
