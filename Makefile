# neki's tasks. `make` alone lists them. What they need from the system, scripts/setup.sh installs on Debian and Ubuntu.

SHELL := /bin/bash
.DEFAULT_GOAL := help

GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
UNIT     := $(GO) list ./... | grep -v '/regress\(/\|$$\)'
FUZZTIME ?= 60s
SUITES   ?=
DEV      ?=
BENCH    ?=
RUN      ?=

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup build ## Install Postgres if missing, build, and start a cluster on this machine (DEV="--shards 3" adds flags)
	exec bin/neki dev $(DEV)

build: ## Build bin/neki
	$(GO) build -trimpath -o bin/neki ./cmd/neki

test: setup-test build ## Run every test: unit tests under the race detector, then the suites of regress/ against a cluster
	$(GO) test -race -shuffle=on -timeout 20m $$($(UNIT) | grep -v /cluster/decide/sim)
	$(GO) test -shuffle=on -timeout 20m ./internal/pgwire ./pooler/plan # race builds leave out the raw sockets, and the counts of allocations
	$(GO) test -shuffle=on -timeout 20m -run 'Allocate|Sequences|Malformed|Oracle|Merged' ./pooler
	$(GO) test -shuffle=on -timeout 20m ./cluster/decide/sim # one goroutine a world: nothing to race, and it is five times slower so
	$(MAKE) --no-print-directory regress-only
	NEKI_BIN=bin/neki $(GO) test -short -count=1 -timeout 10m ./regress/chaos/... # alone: what it breaks must not slow others down

lint: ## Check format, go vet and staticcheck
	@unformatted=$$($(TOOL) gofumpt -l .); if [ -n "$$unformatted" ]; then \
		echo "not formatted (run make fmt):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

fmt: ## Format the Go sources
	$(TOOL) gofumpt -w .

bench: setup-bench build ## Measure the gateway beside PgBouncer and write docs/performance.md (BENCH="--rounds 9" adds flags)
	$(GO) run ./regress/bench $(BENCH)

fuzz: ## Run each fuzz test for FUZZTIME (default 60s)
	scripts/fuzz.sh $(FUZZTIME)

regress: setup-test build regress-only ## Run pg_regress suites and drivers against a cluster (SUITES="settings errors" picks suites)

regress-only:
	NEKI_BIN=bin/neki NEKI_SUITES="$(SUITES)" $(GO) test -count=1 -v -timeout 20m $$($(GO) list ./regress/... | grep -v /regress/chaos)

chaos: setup-test build ## Break a real cluster in every way and check that nothing acknowledged is lost (RUN=TestH7 picks tests)
	NEKI_BIN=bin/neki $(GO) test -count=1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') ./regress/chaos/...

clean: ## Remove what the tasks built; the data of `make run` stays
	rm -rf bin .cache regress/out

setup:
	@scripts/setup.sh postgres

setup-test:
	@scripts/setup.sh postgres test

setup-bench:
	@scripts/setup.sh postgres bench

.PHONY: help run build test lint fmt bench fuzz regress regress-only chaos clean setup setup-test setup-bench
