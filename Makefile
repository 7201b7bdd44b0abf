# edgehub: `make help` lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
FUZZTIME ?= 20s
BENCH    ?= .

# The version is the nearest tag; before the first one, the number of the commit, so that a later package is an upgrade.
ifndef VERSION
VERSION := $(shell git describe --tags --dirty 2>/dev/null || echo "0.1.0-dev.$$(git rev-list --count HEAD 2>/dev/null || echo 0)$$(git describe --always --dirty 2>/dev/null | sed 's/^/+/')")
endif
# Programs are static: no C library, no paths of the machine that built them.
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

# The race detector needs a working C compiler; without one the same tests run without it.
CC_WORKS := $(shell echo 'int main(void) { return 0; }' | $${CC:-gcc} -include stdlib.h -x c -o /dev/null - 2>/dev/null && echo yes)
GOTEST   := CGO_ENABLED=$(if $(CC_WORKS),1,0) $(GO) test $(if $(CC_WORKS),-race) -shuffle=on

# Fetched and built on first use, pinned here and not in go.mod.
GOLANGCI := CGO_ENABLED=0 $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.PHONY: build
build: ## bin/hubd and bin/hubctl, static
	$(BUILD) -o bin/hubd ./hub/cmd/hubd
	$(BUILD) -o bin/hubctl ./ctl/cmd/hubctl

.PHONY: run
run: build ## a hub with the built-in configuration: 127.0.0.1:1883, data in ./data
	exec bin/hubd

.PHONY: demo
demo: ## a hub, 200 devices and a central server, through an outage and a kill
	$(GO) run ./test/demo

.PHONY: test
test: ## vet, import table and all tests that fit 15 minutes: what CI runs
	$(GO) vet ./...
	cd test/e2e && $(GO) vet ./...
	@$(MAKE) --no-print-directory test-386
	$(GOTEST) -timeout 14m ./...

.PHONY: test-full
test-full: ## all tests, the black-box suites at full length
	$(GO) vet ./...
	HUB_TEST_FULL=1 $(GOTEST) -timeout 90m ./...
	HUB_TEST_FULL=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 60m -v -run '^TestSimulation$$' ./hub/broker | grep -v '^ *---\|^=== RUN'
	$(MAKE) test-386 test-package

.PHONY: test-386
test-386: ## storage and queues where an int has 32 bits: natively, with the mended Badger of 32-bit programs
	packaging/mod32.sh
	CGO_ENABLED=0 GOARCH=386 $(GO) test -modfile=dist/mod32/go.mod -timeout 14m ./storage/... ./internal/vfs/... ./hub/topic ./hub/message ./hub/session ./hub/stream

.PHONY: test-package
test-package: deb rpm ## packages in a fresh Debian: install, serve, upgrade, purge; arm64 and armhf under qemu (root)
	VERSION='$(VERSION)' test/package/run.sh

.PHONY: dist
dist: ## dist/: static programs and tarballs for amd64, arm64, armhf, with checksums; the same bytes every time
	VERSION='$(VERSION)' packaging/dist.sh

.PHONY: deb
deb: dist ## dist/*.deb
	VERSION='$(VERSION)' packaging/package.sh deb

.PHONY: rpm
rpm: dist ## dist/*.rpm
	VERSION='$(VERSION)' packaging/package.sh rpm

.PHONY: lint
lint: ## golangci-lint, a pinned version
	$(GOLANGCI) run ./...

.PHONY: generate
generate: ## configs/hubd.toml, docs/CONFIG.md and docs/METRICS.md from the tables in the source
	$(GO) run ./hub/config/generate
	$(GO) run ./hub/server/generate

.PHONY: check
check: ## before a commit: format, lint, generated files, tests
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(MAKE) lint generate
	@git diff --exit-code --stat -- configs docs/CONFIG.md docs/METRICS.md || { echo "generated files were stale: commit them"; exit 1; }
	$(MAKE) test

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s)
	@grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's,^\./(.*)/[^/]*:func (.*),\1 \2,' | sort | \
	while read -r dir target; do \
		echo "== $$dir $$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$dir || exit 1; \
	done

.PHONY: crash
crash: ## >= 10,000 crash clones of log and hub with an uplink, and kill -9 under load; prints counts and seeds. SEGLOG_CRASH_SEED=N, HUB_CLONE_SEED=N repeat
	@mkdir -p dist
	(SEGLOG_CRASH_SEEDS=30 $(GO) test -count=1 -timeout 30m -v -run '^TestCrash$$' ./storage/seglog && \
	HUB_TEST_FULL=1 $(GO) test -count=1 -timeout 30m -v ./test/crash/...) | tee dist/crash.log
	@awk '/crash clones: [0-9]+ of/ { sub(/.*crash clones: /, ""); n += $$1 } END { printf "%d crash clones in all\n", n; exit n < 10000 }' dist/crash.log

.PHONY: bench
bench: ## Go benchmarks; BENCH=REGEXP chooses
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

# What bench-compare runs, how often, and the flags of bench-peers.
HOT   ?= ./adapters/mqtt/packet ./hub/message ./hub/topic ./hub/broker ./storage/seglog
COUNT ?= 6
PEERS ?= -rounds 3 -out docs/BENCHMARKS.md

.PHONY: bench-compare
bench-compare: ## benchmarks of the hot path now and at REF=COMMIT, side by side; BENCH, HOT and COUNT choose
	test/bench/compare.sh '$(REF)' '$(BENCH)' '$(COUNT)' $(HOT)

.PHONY: bench-peers
bench-peers: ## the hub beside mosquitto, nats-server and mochi, into docs/BENCHMARKS.md; PEERS=-quick to try
	$(GO) run ./test/bench $(PEERS)

.PHONY: e2e
e2e: ## clients that are not ours, then the black-box suites of test/, against freshly built binaries
	cd test/e2e && HUB_TEST_E2E=1 $(GO) test -count=1 -timeout 10m -v ./...
	HUB_TEST_E2E=1 $(GO) test -count=1 -timeout 60m -v ./test/...

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
