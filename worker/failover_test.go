package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/postgres"
)

// A server that takes no writes for a while, as after a switch-over, is said to be one. Nobody has to start anything anew
// when it is over, and no row is blamed.
func TestB05ServerIsReadOnlyForAWhile(t *testing.T) {
	t.Parallel()
	server := postgres.StartForTest(t, postgres.Options{})
	j := withoutPending(newJob(t, server, 8000, slow))
	j.publish(2)
	j.start(0, 1)
	j.underWay(500)
	j.exec("SET default_transaction_read_only = off") // for this session
	readOnly := func(value string) {
		j.exec("ALTER SYSTEM SET default_transaction_read_only = " + value)
		j.exec("SELECT pg_reload_conf()")
	}
	readOnly("on")
	j.eventually("both workers say that the server takes no writes", time.Minute, func() bool {
		_, notices := j.report()
		return notices[0].Reason == v1alpha1.ReasonNotPrimary && notices[1].Reason == v1alpha1.ReasonNotPrimary
	})
	readOnly("off")
	if r := j.complete(); r.Failed != 0 || r.Problem != nil {
		t.Errorf("%d rows are blamed, problem %+v", r.Failed, r.Problem)
	}
	if n := j.count("SELECT count(*) FROM shardedjob.row_failure"); n != 0 {
		t.Errorf("%d rows are on record as failed", n)
	}
}

// The standby is promoted while the old primary is still up. What the old one still takes is lost with it, the progress as
// well as the effects; on the new one each row is processed once, and nobody goes back when the old one returns.
func TestB11J08PromotedWhileTheOldPrimaryIsUp(t *testing.T) {
	t.Parallel()
	old := postgres.StartForTest(t, postgres.Options{})
	j := withoutPending(newJob(t, old, 12000, slow))
	standby, err := old.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	at := func(s *postgres.Server) string { return fmt.Sprintf("127.0.0.1:%d", s.Port()) }
	j.secret(map[string]string{"uri": strings.Replace(j.uri, at(old), at(old)+","+at(standby), 1) + "&target_session_attrs=read-write"})
	j.publish(3)
	j.start(0, 1, 2)
	j.underWay(500)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.underWay(200) // on the old one
	if err := old.Stop(postgres.Immediate); err != nil {
		t.Fatal(err)
	}
	before := j.uri
	j.uri = strings.Replace(j.uri, at(old), at(standby), 1)
	j.connect()
	j.underWay(500)
	j.eventually("every worker has seen the new one", time.Minute, func() bool {
		return j.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid::int8 >> 29 = 1 AND granted") == 3
	})
	if err := old.Restart(t.Context(), postgres.Fast); err != nil {
		t.Fatal(err)
	}
	if r := j.complete(); r.Failed != 0 || r.Processed != 12000 {
		t.Errorf("%d rows are blamed and %d processed, want 0 and 12000: the tables count, not the workers", r.Failed, r.Processed)
	}
	// Nor does who has to connect anew, though the old one is the first that it is to try.
	j.plan.Forget = true
	j.publish(2)
	j.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'sj:%'")
	j.eventually("all have connected anew", time.Minute, func() bool { r, _ := j.report(); return r.Forgotten })
	j.uri = before
	j.connect()
	if n := j.count("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sj:%'"); n != 0 {
		t.Errorf("%d sessions are on the old primary", n)
	}
}
