package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is the one certificate authority of a cluster: for servers, for clients and for kubelets.
type authority struct {
	dir  string // where its certificates and keys are, ours alone to read
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// newAuthority makes the folder with the files ca.crt, ca.key, and sa.key, which signs service account tokens.
func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	var err error
	if a.key, err = a.newKey("ca.key"); err != nil {
		return nil, err
	}
	if _, err = a.newKey("sa.key"); err != nil {
		return nil, err
	}
	if a.cert, err = cert.NewSelfSignedCACert(cert.Config{CommonName: "shardedjob-cluster"}, a.key); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	return a, a.writeCert("ca.crt", a.cert.Raw)
}

func (a *authority) newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", file, err)
	}
	text, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", file, err)
	}
	return key, os.WriteFile(a.path(file), text, 0o600)
}

func (a *authority) writeCert(file string, der []byte) error {
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", file, err)
	}
	text, err := cert.EncodeCertificates(parsed)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", file, err)
	}
	return os.WriteFile(a.path(file), text, 0o600)
}

// issue makes NAME.crt and NAME.key for a user (with its groups) that is also a server at the given hosts, if any.
func (a *authority) issue(name, user string, groups []string, hosts ...string) error {
	key, err := a.newKey(name + ".key")
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", name, err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, SerialNumber: serial,
		NotBefore: a.cert.NotBefore, NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", name, err)
	}
	return a.writeCert(name+".crt", der)
}

// writeKubeconfig writes a kubeconfig for the client NAME into file, with the certificates inside so that it can be copied.
func (a *authority) writeKubeconfig(file, server, name, user string, groups ...string) error {
	if err := a.issue(name, user, groups); err != nil {
		return err
	}
	var err error
	read := func(file string) (text []byte) {
		if err == nil {
			text, err = os.ReadFile(a.path(file))
		}
		return text
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[contextName] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: read("ca.crt")}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: read(name + ".crt"), ClientKeyData: read(name + ".key")}
	config.Contexts[contextName] = &clientcmdapi.Context{Cluster: contextName, AuthInfo: name}
	config.CurrentContext = contextName
	if err == nil {
		err = clientcmd.WriteToFile(*config, file)
	}
	if err != nil {
		return fmt.Errorf("write kubeconfig for %s: %w", name, err)
	}
	return nil
}

// contextName is the name of context and cluster in every kubeconfig we write.
const contextName = "shardedjob"

// loadConfig reads a kubeconfig of ours. The client does not hold requests back: the server is ours alone.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}
