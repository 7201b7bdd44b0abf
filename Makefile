# edgehub: `make help` lists the targets.

SHELL       := /bin/bash
GO          ?= go
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
BINARIES    := bin/hubd bin/hubctl
# The race detector needs a C compiler. Shipped binaries never do.
RACE        := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)
TESTFLAGS   ?= -shuffle=on -timeout 14m
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME    ?= 20s

export CGO_ENABLED := $(if $(RACE),1,0)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.PHONY: build
build: ## build bin/hubd and bin/hubctl, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/hubd ./hub/cmd/hubd
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/hubctl ./ctl/cmd/hubctl

.PHONY: run
run: build ## run a hub with the built-in configuration
	bin/hubd

.PHONY: demo
demo: ## a hub, 200 devices and a central server through an outage and a kill
	$(GO) run ./test/demo

.PHONY: test
test: ## vet and every test, what CI runs
	$(GO) vet ./...
	$(GO) test $(RACE) $(TESTFLAGS) ./...
