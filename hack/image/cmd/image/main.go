// Command image puts the project's container image together, without Docker:
//
//	go run ./hack/image/cmd/image -o image.tar        a docker-archive
//	go run ./hack/image/cmd/image -rootfs folder      its files alone, as the Dockerfile wants them
//
// Run it in the root of the repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"shardedjob.dev/hack/image"
)

func main() {
	project := image.Project()
	flag.StringVar(&project.Name, "name", project.Name, "name and tag of the image")
	flag.StringVar(&project.Arch, "arch", "", "architecture, as Go calls it (default: that of this machine)")
	out := flag.String("o", "", "write the image to this file, as a docker-archive")
	rootFS := flag.String("rootfs", "", "write the files of the image below this folder")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	var err error
	switch {
	case *out != "" && *rootFS == "":
		err = image.Write(ctx, ".", project, *out)
	case *rootFS != "" && *out == "":
		err = image.WriteRootFS(ctx, ".", project, *rootFS)
	default:
		err = fmt.Errorf("give one of -o and -rootfs")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
