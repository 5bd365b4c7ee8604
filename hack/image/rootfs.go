package image

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// buildFlags make programs static (with CGO_ENABLED=0) and independent of the place they are built in. They are
// those of the local cluster's servers, so that a machine which has built these has half of the work behind it.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}

// file is one file or folder of an image.
type file struct {
	path    string // absolute
	mode    fs.FileMode
	content []byte
}

func rootFS(ctx context.Context, root string, image Image) ([]file, error) {
	if len(image.Programs) == 0 {
		return nil, errors.New("an image needs a program")
	}
	zones, err := timeZones(ctx)
	if err != nil {
		return nil, err
	}
	files := []file{
		{"/etc", fs.ModeDir | 0o755, nil},
		{"/etc/passwd", 0o644, []byte("root:x:0:0:root:/:/\nnonroot:x:65532:65532:nonroot:/tmp:/\n")},
		{"/etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
		{"/etc/ssl", fs.ModeDir | 0o755, nil},
		{"/etc/ssl/certs", fs.ModeDir | 0o755, nil},
		{"/etc/ssl/certs/ca-certificates.crt", 0o644, trusted()},
		{"/tmp", fs.ModeDir | fs.ModeSticky | 0o777, nil},
		{zoneInfo, 0o644, zones},
	}
	for _, program := range image.Programs {
		binary, err := compile(ctx, root, image.arch(), program.Package)
		if err != nil {
			return nil, err
		}
		files = append(files, file{program.Path, 0o755, binary})
	}
	return files, nil
}

// trusted returns the certificate authorities as PEM. They come from a Go module and not from the machine, which may have
// none, or some of its owner's that nobody else should trust. Left out are those that are only half trusted, for
// certificates up to some day: a PEM file cannot say that.
func trusted() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes everything
		}
	}
	return out.Bytes()
}

// timeZones returns the time zones that come with Go.
func timeZones(ctx context.Context) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find Go's time zones: %w", err)
	}
	zones, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, fmt.Errorf("read Go's time zones: %w", err)
	}
	return zones, nil
}

// compile returns the program that a package is.
func compile(ctx context.Context, root, arch, pkg string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "shardedjob-image-")
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", pkg, err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "program")
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build"}, buildFlags...), "-o", path, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return os.ReadFile(path)
}
