package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"shardedjob.dev/hack/child"
	"shardedjob.dev/hack/postgres"
	"shardedjob.dev/hack/torture/schedule"
)

// machine is what a pod runs on: this one, or one that only a cable joins to this one.
type machine struct {
	cable      cable // nil: this one
	uri        string
	kubeconfig string
}

// cable can be cut.
type cable interface {
	Start(*exec.Cmd) error
	Cut(context.Context) error
	Mend(context.Context) error
	Close() error
}

// start starts a program there, which does not outlive us.
func (m *machine) start(cmd *exec.Cmd) error {
	child.Bind(cmd, syscall.SIGKILL)
	if m.cable == nil {
		return child.Start(cmd)
	}
	return m.cable.Start(cmd)
}

// serverOptions lets the server be reached over cables, if any are to be cut.
func (o options) serverOptions() postgres.Options {
	options := postgres.Options{Settings: settings}
	if o.cuts() {
		options.ListenAddresses, options.AllowedCIDRs, options.Password = []string{"0.0.0.0"}, []string{cableBlock}, rand.Text()
	}
	return options
}

func (o options) cuts() bool { return slices.Contains(o.kinds, schedule.Cut) }

// addMachines gives each ordinal of the lane a machine.
func (l *lane) addMachines(ctx context.Context) error {
	for ordinal := range max(l.pods, schedule.FirstSlots) {
		m := &machine{uri: l.uri, kubeconfig: l.api.Kubeconfig()}
		l.machines = append(l.machines, m)
		if !l.cuts() {
			continue
		}
		laid, outside, err := layCable(ctx)
		if err != nil {
			return err
		}
		m.cable = laid
		l.cables = append(l.cables, laid)
		m.uri = l.server.URIAt(outside, database)
		m.kubeconfig = filepath.Join(l.dir, fmt.Sprintf("%s-%d.kubeconfig", l.way.name, ordinal))
		if err := l.serveAPI(outside, m.kubeconfig); err != nil {
			return err
		}
	}
	return nil
}

// serveAPI passes on to the API server, which listens on loopback alone, what comes to another address, and writes a kubeconfig for
// those who come there.
func (s *scene) serveAPI(address, kubeconfig string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return fmt.Errorf("serve the API at the end of a cable: %w", err)
	}
	s.listeners = append(s.listeners, listener)
	target, err := url.Parse(s.api.Config().Host)
	if err != nil {
		return fmt.Errorf("read the address of the API server: %w", err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go forward(conn, target.Host)
		}
	}()
	return s.writeKubeconfig(listener.Addr().String(), kubeconfig)
}

// forward passes everything on until one side has no more to say.
func forward(conn net.Conn, to string) {
	defer func() { _ = conn.Close() }()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go pass(server, conn)
	go pass(conn, server)
	<-done
}

// writeKubeconfig writes the administrator's kubeconfig for another address of the API server.
func (s *scene) writeKubeconfig(address, path string) error {
	config, err := clientcmd.LoadFromFile(s.api.Kubeconfig())
	if err == nil {
		for _, cluster := range config.Clusters {
			cluster.Server, cluster.TLSServerName = "https://"+address, "localhost"
		}
		err = clientcmd.WriteToFile(*config, path)
	}
	if err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// nowhere is an address at which nobody listens.
var nowhere = net.JoinHostPort("127.0.0.1", strconv.Itoa(1))

// cut cuts the cable to a pod's machine for a while, and says whether there is a pod.
func (j *job) cut(ctx context.Context, f schedule.Fault) bool {
	j.mu.Lock()
	p := j.pods[f.Pod]
	j.mu.Unlock()
	if p == nil || !p.running() {
		return false
	}
	m := j.lane.machines[f.Pod]
	err := m.cable.Cut(ctx)
	if err == nil {
		j.hold(f.Hold)
	}
	if err = errors.Join(err, m.cable.Mend(context.WithoutCancel(ctx))); err != nil {
		j.wrong("%s: %v", f, err)
	}
	return err == nil
}
