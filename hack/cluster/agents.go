package cluster

import (
	"fmt"
)

// kubeletConfig: the machine is shared with its owner, so the kubelet neither evicts pods nor collects images when the disk is full of other things, makes no
// cgroups of its own, and writes no rules into iptables.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
port: %[2]d
readOnlyPort: 0
healthzPort: 0
tlsCertFile: %[3]s
tlsPrivateKeyFile: %[4]s
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[5]s}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://%[6]s
podLogsDir: %[7]s
volumePluginDir: %[8]s
cgroupDriver: cgroupfs
failCgroupV1: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
maxPods: 250
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
`

// proxyConfig: the limits on connection tracking are the machine's owner's to set. masqueradeAll: a pod that talks to another one through a
// service gets its answers back even where the kernel shows bridged packets to no rule.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[1]s}
hostnameOverride: %[2]s
mode: nftables
nftables: {masqueradeAll: true}
clusterCIDR: %[3]s
healthzBindAddress: 127.0.0.1:%[4]d
metricsBindAddress: 127.0.0.1:%[5]d
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s}
leaderElection: {leaderElect: false}
`

// startAgents starts kubelet, scheduler and kube-proxy, each with a certificate of its own. They need no order: each
// waits for what it needs.
func (n *Node) startAgents(binary string, cp *ControlPlane) error {
	pki := cp.ca
	for name, who := range map[string]struct {
		user   string
		groups []string
	}{
		"kubelet":        {"system:node:" + nodeName, []string{"system:nodes"}},
		"kube-scheduler": {"system:kube-scheduler", nil},
		"kube-proxy":     {"system:kube-proxy", nil},
	} {
		if err := pki.writeKubeconfig(pki.path(name+".kubeconfig"), cp.url(), name, who.user, who.groups...); err != nil {
			return err
		}
	}
	if err := pki.issue("kubelet-server", nodeName, nil, BridgeIP, nodeName); err != nil {
		return err
	}
	var ports [3]int
	for i, host := range []string{BridgeIP, "127.0.0.1", "127.0.0.1"} {
		port, err := freePort(host)
		if err != nil {
			return err
		}
		ports[i] = port
	}
	for _, agent := range []struct {
		name, config string
		args         []string
	}{
		{"kubelet", fmt.Sprintf(kubeletConfig, BridgeIP, ports[0], pki.path("kubelet-server.crt"), pki.path("kubelet-server.key"), pki.path("ca.crt"),
			n.socket(), n.path("pod-logs"), n.path("kubelet", "volume-plugins")),
			[]string{"--kubeconfig=" + pki.path("kubelet.kubeconfig"), "--root-dir=" + n.path("kubelet"), "--cert-dir=" + n.path("kubelet", "pki"),
				"--hostname-override=" + nodeName, "--node-ip=" + BridgeIP}},
		{"kube-scheduler", fmt.Sprintf(schedulerConfig, pki.path("kube-scheduler.kubeconfig")), []string{"--secure-port=0"}},
		{"kube-proxy", fmt.Sprintf(proxyConfig, pki.path("kube-proxy.kubeconfig"), nodeName, PodCIDR, ports[1], ports[2]), nil},
	} {
		config := n.path(agent.name + ".yaml")
		if err := writeFile(config, agent.config); err != nil {
			return err
		}
		p := n.process(agent.name)
		p.path, p.args, p.env = binary, append([]string{"--config=" + config}, agent.args...), []string{fullPath()}
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}
