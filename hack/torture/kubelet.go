package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"shardedjob.dev/api/v1alpha1"
	"shardedjob.dev/hack/torture/schedule"
)

// pod is the process of one worker.
type pod struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	// Guarded by the job's mu:
	killed  bool      // by us
	frozen  time.Time // until when a SIGSTOP may have kept it from doing as it was told
	leaving time.Time // when it was sent SIGTERM
}

func (p *pod) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

const kubeletEvery = 50 * time.Millisecond

// keepPods starts, stops and replaces pods as StatefulSet controller and kubelet do, until ctx ends.
func (j *job) keepPods(ctx context.Context) {
	tick := time.NewTicker(kubeletEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		j.mu.Lock()
		if n := j.want.Slots; n < j.replicas && time.Now().After(j.shrinkAt) {
			j.replicas = n
		}
		for ordinal := range j.ordinals() {
			if err := j.keepPod(ordinal); err != nil {
				j.wrong("job %s: %v", j.name, err)
			}
		}
		j.mu.Unlock()
	}
}

// ordinals is one more than the highest that any pod ever has.
func (j *job) ordinals() int32 { return max(j.options.pods, schedule.FirstSlots) }

// keepPod does what is next for one pod. The job's mu is held.
func (j *job) keepPod(ordinal int32) error {
	p, now := j.pods[ordinal], time.Now()
	wanted := ordinal < j.replicas || j.grounded
	switch {
	case p == nil && wanted && !j.grounded && now.After(j.heldBack[ordinal]):
		return j.startPod(ordinal, j.lane.machines[ordinal].kubeconfig)
	case p == nil:
	case !p.running():
		delete(j.pods, ordinal)
		j.examine(ordinal, p)
	case !wanted && p.leaving.IsZero():
		p.leaving = now
		j.uids[ordinal] = "" // the next is another pod
		return p.cmd.Process.Signal(syscall.SIGTERM)
	case p.leaving.IsZero() || p.killed || now.Sub(p.leaving) < podGrace:
	case now.Sub(p.frozen) > podGrace:
		j.wrong("job %s: pod %d has not stopped within %s of SIGTERM; what it is at stands at the end of %s", j.name, ordinal, podGrace, p.log)
		p.killed = true
		return p.cmd.Process.Signal(syscall.SIGQUIT)
	default:
		p.killed = true
		return p.cmd.Process.Kill()
	}
	return nil
}

// examine looks how a worker ended.
func (j *job) examine(ordinal int32, p *pod) {
	state := p.cmd.ProcessState
	status, _ := state.Sys().(syscall.WaitStatus)
	early := status.Signaled() && status.Signal() == syscall.SIGTERM // it had not begun to listen for signals
	switch {
	case p.killed:
	case p.leaving.IsZero():
		j.wrong("job %s: pod %d ended by itself with %s; see %s", j.name, ordinal, state, p.log)
	case !state.Success() && !early:
		j.wrong("job %s: pod %d ended with %s after SIGTERM; see %s", j.name, ordinal, state, p.log)
	}
}

// startPod starts a worker with the environment and the mounts of its pod. The job's mu is held.
func (j *job) startPod(ordinal int32, kubeconfig string) error {
	if j.uids[ordinal] == "" {
		j.made++
		j.uids[ordinal] = fmt.Sprintf("%08x-0000-4000-8000-000000000000", j.made)
	}
	p := &pod{log: filepath.Join(j.dir, fmt.Sprintf("worker-%d.log", ordinal)), exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of pod %d: %w", ordinal, err)
	}
	p.cmd = exec.Command(j.program, "--kubeconfig="+kubeconfig, "--plan-file="+j.planFile(), "--database-dir="+j.databaseDir(ordinal),
		"--ca-dir="+filepath.Join(j.dir, "no-ca"), "--listen-address=127.0.0.1:0")
	p.cmd.Env = append(os.Environ(),
		v1alpha1.EnvPodName+"="+v1alpha1.PodName(j.name, ordinal), v1alpha1.EnvPodUID+"="+j.uids[ordinal],
		v1alpha1.EnvPodNamespace+"="+namespace, v1alpha1.EnvJobName+"="+j.name, v1alpha1.EnvJobUID+"="+string(j.want.UID),
		v1alpha1.EnvURIKey+"=uri")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	err = j.lane.machines[ordinal].start(p.cmd)
	_ = log.Close() // the child has its own
	if err != nil {
		return fmt.Errorf("start pod %d: %w", ordinal, err)
	}
	j.pods[ordinal] = p
	go func() {
		_ = p.cmd.Wait() // examine looks at its state
		close(p.exited)
	}()
	return nil
}

// kill sends SIGKILL to a pod and returns once it is gone; the kubelet starts it again after a while. It says whether there was one.
func (j *job) kill(ordinal int32, startAfter time.Duration) bool {
	j.mu.Lock()
	p := j.pods[ordinal]
	if p == nil || !p.running() {
		j.mu.Unlock()
		return false
	}
	p.killed = true
	_ = p.cmd.Process.Kill()
	j.heldBack[ordinal] = time.Now().Add(startAfter)
	j.mu.Unlock()
	<-p.exited
	return true
}

// killAll kills every pod. Until release the kubelet starts and stops none.
func (j *job) killAll() {
	j.mu.Lock()
	j.grounded = true
	j.mu.Unlock()
	for ordinal := range j.ordinals() {
		j.kill(ordinal, 0)
	}
}

func (j *job) release() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.grounded = false
}

// freeze stops a pod's process for a time that hold waits for, and says whether there was one.
func (j *job) freeze(ordinal int32, d time.Duration, hold func(time.Duration)) bool {
	j.mu.Lock()
	p := j.pods[ordinal]
	if p == nil || !p.running() {
		j.mu.Unlock()
		return false
	}
	p.frozen = time.Now().Add(d)
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	j.mu.Unlock()
	hold(d)
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may have been killed
	return true
}

// stopPods ends all pods as they end when a job is deleted, and returns when they are gone.
func (j *job) stopPods(ctx context.Context) error {
	j.mu.Lock()
	j.replicas, j.over = 0, true
	j.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 4*podGrace)
	defer cancel()
	for {
		j.mu.Lock()
		left := len(j.pods)
		j.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods of job %s do not stop: %w", left, j.name, ctx.Err())
		case <-time.After(kubeletEvery):
		}
	}
}
