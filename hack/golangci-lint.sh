#!/usr/bin/env bash
# Runs golangci-lint as the module hack/tools pins it, with kube-api-linter built in. It is built once for each pin and
# kept in the user's cache folder, so that a fresh clone does not build it again.
set -euo pipefail

tools=$(dirname "${BASH_SOURCE[0]}")/tools
case $(go env GOHOSTOS) in
darwin) cache=$HOME/Library/Caches ;;
*) cache=${XDG_CACHE_HOME:-$HOME/.cache} ;;
esac
key=$( (cat "$tools/go.mod" "$tools/go.sum" "$tools/golangci-lint/main.go" && go env GOVERSION GOHOSTOS GOHOSTARCH) | git hash-object --stdin)
binary=$cache/shardedjob/bin/golangci-lint-${key:0:16}

if [[ ! -x $binary ]]; then
	echo "Building golangci-lint, once; this takes some minutes" >&2
	mkdir -p "${binary%/*}"
	# Another name first: a build that is cut off, or one beside it, must leave no half binary.
	partial=$binary.$$
	trap 'rm -f "$partial"' EXIT
	(cd "$tools" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$partial" ./golangci-lint)
	mv "$partial" "$binary"
fi
exec "$binary" "$@"
