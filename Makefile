# Everything a developer does with the project. `make` alone lists it.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
KUBECTL ?= kubectl
CONTROLLER_GEN := $(GO) tool controller-gen
# Pure Go, so that the binaries run in an empty image.
BUILD := CGO_ENABLED=0 $(GO) build -trimpath

# What `make generate` writes, and the modules that live in folders of their own.
GENERATED := ':(glob)**/zz_generated.*.go' ':(glob)api/**/applyconfiguration/**' config/crd/bases config/rbac/role.yaml
MODULES := . $(patsubst %/go.mod,%,$(shell git ls-files -co --exclude-standard '*/go.mod'))

##@ Source

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: generate
generate: ## Write deep copies, apply configurations, CRD and role anew.
	rm -rf api/v1alpha1/applyconfiguration config/crd/bases # or what is generated no more would stay
	$(CONTROLLER_GEN) object applyconfiguration paths=./api/...
	$(CONTROLLER_GEN) crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir=config/crd/bases
	$(GO) run ./hack/crdtrim config/crd/bases/*.yaml
	$(CONTROLLER_GEN) rbac:roleName=manager-role paths=./controllers/... output:rbac:dir=config/rbac

.PHONY: verify
verify: generate ## Fail if generated files or go.mod files are not up to date.
	@changed=$$(git status --porcelain -- $(GENERATED)); \
	if [[ -n $$changed ]]; then \
		echo "Generated files differ from what is committed: run make generate and commit"; \
		echo "$$changed"; git --no-pager diff -- $(GENERATED); exit 1; \
	fi
	@for module in $(MODULES); do \
		echo "go mod tidy -diff in $$module"; (cd "$$module" && $(GO) mod tidy -diff); \
	done

.PHONY: lint
lint: ## Look for mistakes and for code that is not formatted.
	hack/golangci-lint.sh fmt --diff
	hack/golangci-lint.sh run ./...

.PHONY: fmt
fmt: ## Format the code.
	hack/golangci-lint.sh fmt

##@ Build

.PHONY: build
build: ## Build bin/manager and bin/worker.
	$(BUILD) -o bin/manager ./controllers/cmd/manager
	$(BUILD) -o bin/worker ./worker/cmd/worker

.PHONY: image
image: ## Build dist/image.tar, the image with both programs, without Docker.
	mkdir -p dist
	$(GO) run ./hack/image/cmd/image -o dist/image.tar

##@ Test

.PHONY: test
test: test-unit test-e2e ## Run every test: what proves that it works. Needs root on Linux.

.PHONY: test-unit
test-unit: servers ## Run all tests but the end-to-end ones, with real PostgreSQL and API servers.
	$(GO) test -race -timeout 30m ./...

.PHONY: test-e2e
test-e2e: servers ## Run the end-to-end tests on a real node, which they start and remove. Needs root on Linux.
	$(GO) test -tags e2e -v -count 1 -run Node -timeout 20m ./hack/cluster
	$(GO) test -tags e2e -v -count 1 -parallel 3 -timeout 60m ./hack/e2e/...

# Built beforehand, because the first build takes longer than go test lets a test run.
.PHONY: servers
servers:
	$(GO) run ./hack/cluster/cmd/cluster build

.PHONY: bench
bench: ## Measure workers against plain sessions, and the steps of the protocol.
	$(GO) run ./hack/bench
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

DURATION ?= 10m
SEED ?= 0

.PHONY: torture
torture: servers ## Break everything at random for DURATION, by the schedule of SEED, and count how often each row was processed.
	$(GO) run ./hack/torture -duration $(DURATION) -seed $(SEED)

##@ Try

.PHONY: demo
demo: ## Show the whole thing at work on this machine. Needs root on Linux.
	$(GO) run ./hack/demo

.PHONY: cluster-up
cluster-up: ## Start a Kubernetes node on this machine. Needs root on Linux.
	$(GO) run ./hack/cluster/cmd/cluster up

.PHONY: cluster-down
cluster-down: ## Remove that node again.
	$(GO) run ./hack/cluster/cmd/cluster down

.PHONY: run
run: ## Run the operator on this machine against the current kubectl context.
	$(GO) run ./controllers/cmd/manager

##@ Deploy

.PHONY: install
install: ## Put the CRD into the current kubectl context.
	$(KUBECTL) apply -k config/crd

.PHONY: uninstall
uninstall: ## Remove the CRD, and with it every ShardedJob.
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Put CRD, roles and operator into the current kubectl context.
	$(KUBECTL) apply -k config/default

.PHONY: undeploy
undeploy: ## Remove what deploy put there, and with it every ShardedJob.
	$(KUBECTL) delete --ignore-not-found -k config/default
