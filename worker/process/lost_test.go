package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"shardedjob.dev/worker/database"
)

// lossy is a connection that breaks at the first COMMIT: the server gets it or not, and its answer does not come back.
type lossy struct {
	net.Conn
	arrives bool
	broken  atomic.Bool
}

func (l *lossy) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("COMMIT\x00")) {
		l.broken.Store(true)
		if !l.arrives {
			return len(p), l.Close()
		}
	}
	return l.Conn.Write(p)
}

func (l *lossy) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p) // the answer, by which time it is committed
	if l.broken.Load() {
		return 0, errors.Join(io.ErrUnexpectedEOF, l.Close())
	}
	return n, err
}

// connectLossy connects over such a connection.
func (b *bench) connectLossy(arrives bool) *pgx.Conn {
	b.Helper()
	config, err := pgx.ParseConfig(b.uri)
	if err != nil {
		b.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &lossy{Conn: conn, arrives: arrives}, err
	}
	conn, err := pgx.ConnectConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

// TestOutcomeOfCommitUnknown loses the connection at COMMIT. Whoever comes next learns from the tables what became of it.
func TestOutcomeOfCommitUnknown(t *testing.T) {
	settings := Settings{Statement: update, Rows: 5}
	for name, arrives := range map[string]bool{"committed": true, "not committed": false} {
		t.Run("pending, "+name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 20))
			w := b.worker(spec, settings, 1, 0)
			w.session.conn = b.connectLossy(arrives)
			if _, err := w.Step(t.Context(), w.session); !errors.Is(err, ErrCommitUnknown) || database.Classify(err) != database.ClassOutage {
				t.Fatalf("got %v", err)
			}
			w.session.conn = b.connect()
			if state := w.run(); state != Drained || w.seen[Retrying]+w.seen[Failing] > 0 {
				t.Errorf("ends in %v after %v", state, w.seen)
			}
			b.wantAllOnce()
		})
		t.Run("cursor, "+name, func(t *testing.T) {
			b := newBench(t, tableOf("int")+rows(1, 20))
			w := b.cursorWorker(settings, 1, 1, 0)
			w.session.conn = b.connectLossy(arrives)
			_, err := w.step() // the horizon
			if err == nil {
				_, err = w.step()
			}
			if !errors.Is(err, ErrCommitUnknown) || database.Classify(err) != database.ClassOutage {
				t.Fatalf("got %v", err)
			}
			next := b.cursorWorker(settings, 1, 1, 0)
			if state := next.run(); state != Drained || (next.done == 15) != arrives {
				t.Errorf("ends in %v with %d rows", state, next.done)
			}
			b.wantAllOnce()
			if n := b.text("SELECT processed || ' ' || (SELECT count(*) FROM shardedjob.row_failure) FROM shardedjob.slot"); n != "20 0" {
				t.Errorf("processed and failed are %s, want 20 0", n)
			}
		})
	}
}

// TestG05NoRoomCostsNoAttempt runs out of disk, which is no row's fault.
func TestG05NoRoomCostsNoAttempt(t *testing.T) {
	b := newBench(t, tableOf("int")+rows(1, 10)+"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''disk_full''; END'; CREATE TRIGGER f AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()")
	settings := Settings{Statement: update, Rows: 5, MaxAttempts: 1}
	remembers, cursor := b.worker(spec, settings, 1, 0), b.cursorWorker(settings, 1, 1, 0)
	if _, err := cursor.step(); err != nil { // the horizon
		t.Fatal(err)
	}
	for range 3 {
		for _, step := range []func() (Result, error){
			func() (Result, error) { return remembers.Step(t.Context(), remembers.session) }, cursor.step,
		} {
			if result, err := step(); err == nil || database.Classify(err) != database.ClassOutage {
				t.Fatalf("%+v %v", result, err)
			}
		}
	}
	b.exec("DROP TRIGGER f ON t")
	if state := cursor.run(); state != Drained || b.text("SELECT count(*)::text FROM shardedjob.row_failure") != "0" {
		t.Errorf("ends in %v", state)
	}
	b.wantAllOnce()
	b.exec("UPDATE t SET done = false, times = 0")
	if state := remembers.run(); state != Drained || remembers.seen[Retrying]+remembers.seen[Failing] > 0 {
		t.Errorf("ends in %v after %v", state, remembers.seen)
	}
	b.wantAllOnce()
}
