package postgres

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
)

// StartStandby starts a hot standby of the server: a server of its own, on loopback and a free port, that
// follows the first and is read-only until Promote. The caller closes it.
func (s *Server) StartStandby(ctx context.Context) (*Server, error) {
	options := s.options
	options.Dir, options.Port, options.ListenAddresses = "", 0, []string{"127.0.0.1"}
	standby, err := prepare(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := standby.follow(ctx, s); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	return standby, nil
}

// follow copies the primary's data, with the recovery settings that keep it following, and starts. The path is the
// primary's socket, so no password has to be kept.
func (s *Server) follow(ctx context.Context, primary *Server) error {
	err := s.account.run(ctx, s.dir, nil, filepath.Join(s.binDir, "pg_basebackup"),
		"-D", s.data(), "-h", primary.dir, "-p", strconv.Itoa(primary.port), "-U", "postgres",
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
	if err != nil {
		return fmt.Errorf("copying the primary: %w", err)
	}
	return s.launch(ctx)
}

// Promote makes a standby a primary and returns once it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(wait => true)").Scan(&promoted); err != nil {
		return fmt.Errorf("promoting the standby: %w", err)
	}
	if !promoted {
		return errors.New("the standby was not promoted in time")
	}
	return nil
}
