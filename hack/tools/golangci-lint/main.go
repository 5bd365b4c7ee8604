// Command golangci-lint is golangci-lint with kube-api-linter built in, as `golangci-lint custom` would make it. It
// lives in a module of its own so that the linters' many dependencies stay out of the product's go.mod.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/kube-api-linter" // registers the linter "kubeapilinter"
)

const linterModule = "github.com/golangci/golangci-lint/v2"

func main() {
	if err := commands.Execute(buildInfo()); err != nil {
		fmt.Fprintln(os.Stderr, "golangci-lint:", err)
		os.Exit(exitcodes.Failure)
	}
}

// buildInfo takes the version from the module that was linked in, since nobody stamps this binary.
func buildInfo() commands.BuildInfo {
	info := commands.BuildInfo{Version: "unknown", GoVersion: "unknown", Commit: "unknown", Date: "unknown"}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	info.GoVersion = build.GoVersion
	for _, dep := range build.Deps {
		if dep.Path == linterModule {
			info.Version = strings.TrimPrefix(dep.Version, "v")
			info.Commit = dep.Sum
		}
	}
	return info
}
