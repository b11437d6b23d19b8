# `make demo` and `make test` install what they need on a fresh Debian 12, as root. `make help` lists all targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: install uninstall deb help build build-bench build-dpdk build-fleet build-query all demo test test-long test-quick test-vm test-vm-all test-cards test-kernels test-cluster fuzz bench fmt lint lock format english clippy doc man record site dist deb-source package-crates lint-packages clean size

# Root's PATH may lack the directory where rustup puts cargo.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Number of seconds for which `make fuzz` runs each parser.
FUZZ_SECONDS ?= 10

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

build-dpdk: ## Build the helper for --tap dpdk, target/release/trawl-dpdk, for the installed DPDK
	@scripts/install build dpdk
	@scripts/build-dpdk

build-bench: ## Build the helper for trawl bench, target/release/trawl-bench
	@scripts/install build
	cargo build --locked --release --bin trawl-bench

build-fleet: ## Build the helper for trawl store, trawl fleet and capture --store, target/release/trawl-fleet
	@scripts/install build
	@scripts/build-fleet trawl-fleet

build-query: ## Build the helper for SQL and trawl store trace, target/release/trawl-query; takes minutes
	@scripts/install build
	@scripts/build-fleet trawl-query

build: ## Build the release binary, target/release/trawl
	@scripts/install build
	cargo build --locked --release --bin trawl

all: build build-bench build-fleet build-query build-dpdk ## Build trawl and its helpers

demo: ## Build trawl, and show its main job in a temporary lab
	@scripts/demo

test: ## Run all tests but the long ones, in a virtual machine if they need another kernel; the last line counts them
	@scripts/install build test python
	-@scripts/install vm
	@scripts/mount-bpffs
	@scripts/test

test-long: ## Run the tests that kill commands at each step or send many packets, more in a virtual machine, and on a cluster
	@scripts/install build test python
	-@scripts/install vm
	@scripts/mount-bpffs
	@scripts/test --long

test-vm: ## Run the tests that need another kernel, in a virtual machine
	@scripts/install build test vm python
	@scripts/test --vm

test-vm-all: ## Run all end-to-end tests in a virtual machine, under another kernel
	@scripts/install build test vm python
	@scripts/test --vm --all

test-cards: ## Measure each emulated card and virtual pair under two kernels, in virtual machines; takes about an hour
	@scripts/install build test vm python
	@scripts/test --cells --cards

test-kernels: ## Measure trawl under each of Debian's kernels, and under lockdown; takes about an hour
	@scripts/install build test vm python
	@scripts/test --cells --kernels

test-cluster: ## Run the tests on a cluster of Kubernetes, which the first run builds in minutes
	@scripts/install build test python
	@scripts/test --cluster

test-quick: ## Run the unit tests only
	@scripts/install build
	@scripts/test --lib --bins

fuzz: ## Run each parser on mutated bytes for FUZZ_SECONDS
	@scripts/install build test
	@TRAWL_FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

bench: build build-bench ## Measure recording to a file, for trawl and for the installed peers
	@scripts/install demo
	@scripts/mount-bpffs
	$(TARGET)/release/trawl bench capture-bandwidth

fmt: ## Format the source
	@scripts/install build lint
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml
	cargo fmt --all --manifest-path fleet/Cargo.toml

size: ## Print the numbers of lines, files and tokens by crate and product
	@scripts/size

lint: lock format clippy doc english ## Check the lock files, the format, clippy's and rustdoc's warnings, the English, the links

lock:
	@scripts/install build
	cargo metadata --locked --format-version 1 >/dev/null
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	cargo metadata --locked --format-version 1 --manifest-path fleet/Cargo.toml >/dev/null

english:
	@scripts/lint-english
	@scripts/lint-links

format:
	@scripts/install build lint
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo fmt --all --manifest-path fleet/Cargo.toml --check

# Clippy compiles the programs and tests itself, so that one build serves the lints and the tests.
clippy:
	@scripts/install build lint
	@scripts/build-tests --lint

doc: ## Build the documentation of the libraries, target/doc
	@scripts/install build
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet -p trawl-packet -p trawl-filter -p trawl-view -p trawl-pipeline -p trawl-capture

man: build build-bench build-fleet ## Generate the manual pages in docs/man, docs/pcapng.md and Wireshark's post-dissector
	$(TARGET)/release/trawl man docs/man
	$(TARGET)/release/trawl-bench man docs/man
	$(TARGET)/release/trawl-fleet man docs/man
	$(TARGET)/release/trawl extcap fields --lua > packaging/wireshark/trawl.lua
	$(TARGET)/release/trawl extcap fields --markdown > docs/pcapng.md

record: build ## Record the demonstration as docs/demo.svg, the picture in the README
	@scripts/install demo
	@scripts/mount-bpffs
	cd out && PATH=$(abspath $(TARGET))/release:$$PATH ../scripts/record ../docs/demo.svg trawl demo

# Directory of the installed files; packages prepend DESTDIR.
PREFIX ?= /usr/local
DESTDIR ?=
ROOT := $(DESTDIR)$(PREFIX)
# Wireshark reads only its own directories, which are in /usr wherever trawl is installed.
EXTCAP ?= /usr/lib/$(shell uname -m)-linux-gnu/wireshark/extcap
PLUGINS ?= $(patsubst %/extcap,%/plugins,$(EXTCAP))
PROFILES ?= /usr/share/wireshark/profiles
# The installed binary, and the directory of the helpers.
BINARY ?= $(TARGET)/release/trawl
HELPERS ?= $(TARGET)/release
# Emulator for a binary of another architecture.
RUN ?=

install: ## Install the release binary, manual pages, completions, units and Wireshark's extcap script and post-dissector
	@[ -x $(BINARY) ] || $(MAKE) --no-print-directory build
	install -D -m 755 $(BINARY) $(ROOT)/bin/trawl
	for helper in trawl-bench trawl-dpdk trawl-fleet trawl-query; do [ ! -x $(HELPERS)/$$helper ] || \
	    install -D -m 755 $(HELPERS)/$$helper $(ROOT)/libexec/trawl/$$helper; done
	install -m 755 packaging/kubernetes/kubectl-trawl packaging/kubernetes/kubectl-trawl-fleet $(ROOT)/bin/
	for page in docs/man/*.1 packaging/kubernetes/*.1; do install -D -m 644 $$page $(ROOT)/share/man/man1/$${page##*/}; done
	mkdir -p $(ROOT)/share/bash-completion/completions $(ROOT)/share/zsh/vendor-completions $(ROOT)/share/fish/vendor_completions.d
	$(RUN) $(BINARY) completions bash > $(ROOT)/share/bash-completion/completions/trawl
	$(RUN) $(BINARY) completions zsh > $(ROOT)/share/zsh/vendor-completions/_trawl
	$(RUN) $(BINARY) completions fish > $(ROOT)/share/fish/vendor_completions.d/trawl.fish
	for unit in packaging/systemd/*.service; do \
	    mkdir -p $(ROOT)/lib/systemd/system && \
	    sed 's|/usr/bin/trawl|$(PREFIX)/bin/trawl|g; s|/usr/local/bin/trawl|$(PREFIX)/bin/trawl|g' $$unit \
	        > $(ROOT)/lib/systemd/system/$${unit##*/}; done
	for file in preferences colorfilters dfilter_buttons recent; do \
	    install -D -m 644 packaging/wireshark/$$file $(DESTDIR)$(PROFILES)/trawl/$$file; done
	install -D -m 644 packaging/wireshark/trawl.lua $(DESTDIR)$(PLUGINS)/trawl.lua
	for file in grafana.json grafana-agents.json alerts.yml; do \
	    install -D -m 644 packaging/prometheus/$$file $(ROOT)/share/trawl/$$file; done
	install -D -m 644 packaging/kubernetes/trawl.yaml $(ROOT)/share/trawl/kubernetes.yaml
	install -d $(DESTDIR)$(EXTCAP)
	printf '#!/bin/sh\n# Written by trawl extcap install.\nexec %s extcap "$$@"\n' '$(PREFIX)/bin/trawl' \
	    > $(DESTDIR)$(EXTCAP)/trawl
	chmod 755 $(DESTDIR)$(EXTCAP)/trawl

uninstall: ## Remove the files that `make install` installed
	rm -f $(ROOT)/bin/{trawl,kubectl-trawl,kubectl-trawl-fleet} $(ROOT)/libexec/trawl/trawl-{bench,dpdk,fleet,query} $(ROOT)/share/bash-completion/completions/trawl
	rm -f $(ROOT)/share/zsh/vendor-completions/_trawl $(ROOT)/share/fish/vendor_completions.d/trawl.fish
	for page in docs/man/*.1 packaging/kubernetes/*.1; do rm -f $(ROOT)/share/man/man1/$${page##*/}; done
	for unit in packaging/systemd/*.service; do rm -f $(ROOT)/lib/systemd/system/$${unit##*/}; done
	rm -f $(DESTDIR)$(EXTCAP)/trawl $(DESTDIR)$(PLUGINS)/trawl.lua
	rm -rf $(DESTDIR)$(PROFILES)/trawl $(ROOT)/share/trawl
	rmdir $(ROOT)/libexec/trawl 2>/dev/null || true

site: ## Build the documentation and manual pages as a site, target/site/html, and check its links
	@scripts/install build site
	@scripts/site

dist: ## Build the files of a release in out/dist, check them, and compare them with a second build
	@scripts/install build dist vm
	@scripts/dist

deb: build build-bench build-fleet build-query ## Build Debian packages in out/
	@scripts/deb

deb-source: ## Build the Debian source package with its crates in out/source, and check it
	@scripts/install source
	@scripts/deb-source

package-crates: ## Pack the libraries for the Rust registry in out/crates, and build each without clang
	@scripts/install build
	@scripts/package-crates

lint-packages: ## Check the files in packaging/ by the linters of their channels
	@scripts/install channels
	@scripts/lint-packages

clean: ## Remove build results and recordings
	cargo clean
	rm -rf out
