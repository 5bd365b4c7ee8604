// Package image puts container images of Go programs together without Docker and without an image registry.
//
// An image is one layer over nothing: static programs, the certificate authorities that Mozilla trusts, the time zones, a user without
// rights, a folder /tmp. It is written as a docker-archive, the tar that containerd, Docker and Podman load. The Dockerfile
// makes the same files with [WriteRootFS], so an image from there and one from here differ in nothing that runs.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Program is one program of an image.
type Program struct {
	Package string // what `go build` builds, such as ./worker/cmd/worker
	Path    string // where it is in the image, such as /worker
}

// Image says what to put together.
type Image struct {
	Name     string    // such as shardedjob.dev/shardedjob:dev; a name with a domain is not taken for one of Docker Hub
	Programs []Program // the first is what the image starts by default
	Arch     string    // GOARCH; default: that of this machine
}

// Project is the project's own image.
func Project() Image {
	return Image{
		Name: "shardedjob.dev/shardedjob:dev",
		Programs: []Program{
			{Package: "./controllers/cmd/manager", Path: "/manager"},
			{Package: "./worker/cmd/worker", Path: "/worker"},
		},
	}
}

// user is who runs in the image: nobody special, and the same number that others use for it, so that policies know it.
const user = "65532:65532"

// zoneInfo is where the time zones are, in the environment variable that the Go library reads.
const zoneInfo = "/zoneinfo.zip"

// Write builds the programs in the module at root and writes the image to the file path.
func Write(ctx context.Context, root string, image Image, path string) error {
	tag, err := name.NewTag(image.Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("name the image: %w", err)
	}
	files, err := rootFS(ctx, root, image)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return pack(files) })
	if err != nil {
		return fmt.Errorf("make the layer of %s: %w", image.Name, err)
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		made, err = configure(made, image)
	}
	if err != nil {
		return fmt.Errorf("put %s together: %w", image.Name, err)
	}
	if err := tarball.WriteToFile(path, tag, made); err != nil {
		return fmt.Errorf("write %s: %w", image.Name, err)
	}
	return nil
}

// WriteRootFS builds the programs in the module at root and writes the files of the image below the folder dir.
func WriteRootFS(ctx context.Context, root string, image Image, dir string) error {
	files, err := rootFS(ctx, root, image)
	if err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(dir, file.path)
		if file.mode.IsDir() {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, file.content, 0o644)
		}
		if err == nil {
			err = os.Chmod(path, file.mode) // beyond the umask
		}
		if err != nil {
			return fmt.Errorf("write the files of %s: %w", image.Name, err)
		}
	}
	return nil
}

func (i Image) arch() string {
	if i.Arch != "" {
		return i.Arch
	}
	return runtime.GOARCH
}

// configure says how the image runs.
func configure(made v1.Image, image Image) (v1.Image, error) {
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", image.arch()
	config.Config = v1.Config{User: user, Env: []string{"ZONEINFO=" + zoneInfo}, Entrypoint: []string{image.Programs[0].Path}}
	return mutate.ConfigFile(made, config)
}

// pack makes the tar of a layer. Times are fixed, so the same files are the same layer.
func pack(files []file) (io.ReadCloser, error) {
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for _, file := range files {
		header := &tar.Header{Name: file.path[1:], Typeflag: tar.TypeReg, Mode: int64(file.mode.Perm()), Size: int64(len(file.content)), ModTime: time.Unix(0, 0)}
		if file.mode.IsDir() {
			header.Name, header.Typeflag = header.Name+"/", tar.TypeDir
		}
		if file.mode&os.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(file.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&out), nil
}
