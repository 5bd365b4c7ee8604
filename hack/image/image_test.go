package image

import (
	"archive/tar"
	"crypto/x509"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	. "github.com/onsi/gomega"
)

// small is an image that is quick to build.
var small = Image{
	Name:     "shardedjob.dev/small:test",
	Programs: []Program{{Package: "./hack/cluster/pause", Path: "/pause"}},
}

const root = "../.."

func TestWrite(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "image.tar")
	g.Expect(Write(t.Context(), root, small, path)).To(Succeed())

	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(manifest).To(HaveLen(1))
	g.Expect(manifest[0].RepoTags).To(ConsistOf("shardedjob.dev/small:test"))

	image, err := tarball.ImageFromPath(path, nil)
	g.Expect(err).NotTo(HaveOccurred())
	config, err := image.ConfigFile()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Config.User).To(Equal("65532:65532"))
	g.Expect(config.Config.Entrypoint).To(Equal([]string{"/pause"}))
	g.Expect(config.Config.Env).To(ContainElement("ZONEINFO=/zoneinfo.zip"))
	g.Expect(config.OS).To(Equal("linux"))
	g.Expect(config.RootFS.DiffIDs).To(HaveLen(1))

	modes, contents := map[string]int64{}, map[string][]byte{}
	extracted := mutate.Extract(image)
	defer extracted.Close()
	for reader := tar.NewReader(extracted); ; {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		g.Expect(err).NotTo(HaveOccurred())
		modes[header.Name] = header.Mode
		contents[header.Name], err = io.ReadAll(reader)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(modes).To(And(HaveKeyWithValue("pause", int64(0o755)), HaveKeyWithValue("tmp", int64(0o1777)), HaveKey("zoneinfo.zip"), HaveKey("etc/passwd")))
	pool := x509.NewCertPool()
	g.Expect(pool.AppendCertsFromPEM(contents["etc/ssl/certs/ca-certificates.crt"])).To(BeTrue())

	program := filepath.Join(t.TempDir(), "pause")
	g.Expect(os.WriteFile(program, contents["pause"], 0o755)).To(Succeed())
	binary, err := elf.Open(program)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = binary.Close() }()
	libraries, err := binary.ImportedLibraries()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(libraries).To(BeEmpty(), "the program must be static")
}

// The Dockerfile copies this folder as it is.
func TestWriteRootFS(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(WriteRootFS(t.Context(), root, small, dir)).To(Succeed())
	files, err := rootFS(t.Context(), root, small)
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		info, err := os.Stat(filepath.Join(dir, file.path))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode()).To(Equal(file.mode), file.path)
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, bad := range map[string]Image{
		"no name":    {Programs: small.Programs},
		"no program": {Name: small.Name},
		"no package": {Name: small.Name, Programs: []Program{{Package: "./nowhere", Path: "/x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "image.tar")
			g.Expect(Write(t.Context(), root, bad, path)).NotTo(Succeed())
			g.Expect(path).NotTo(BeAnExistingFile())
		})
	}
}
