// Package controllers is the operator. It turns a ShardedJob into a StatefulSet whose pod k owns slot k of the table,
// and a Plan that tells all pods how many slots there are.
//
// One pass over a job goes through four parts that live apart:
//
//   - observe reads the world into one Observation of plain values;
//   - plan, a pure function, names the next Step: Observation in, Step out, without a client, a context or a clock;
//   - act carries out that one Step;
//   - report, a pure function again, makes the status and its conditions, which are written once if they differ.
//
// Every step may be repeated, and a crash between any two leaves a world from which the plan goes on. What must
// not be lost is written first: the target of a re-partition goes into status before the plan is published, and
// plan and status are only ever written on top of the version that was read. The plan is the one thing that
// workers obey, so whatever the operator believes, two partitions are never in force under one epoch.
package controllers
