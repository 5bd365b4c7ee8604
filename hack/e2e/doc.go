// Package e2e holds the tests from end to end: a real node with kubelet and containerd, the real image, a real PostgreSQL, and kubectl as a
// user types it. They are built with the tag e2e and need root on Linux:
//
//	make test-e2e
//
// Each test has a namespace, a database and a table of its own. A trigger notes every row that is processed in an audit table, in the
// transaction that processes it, so that at the end of each test the database itself says how often each row was. What is
// measured on the way is printed at the end of the run.
package e2e
