# What a person or CI runs. Each target installs what it lacks first.
.PHONY: build test interleavings kills stops many fsx stress large coolness thresholds outrun staging fuzz demo bench lint fmt install-deps glibc-check memcheck

build: install-deps
	cargo build --release --workspace

# The whole workspace first: tests start the programs that lie beside them.
test:
	@scripts/install-deps.sh test
	@scripts/install-tools.sh
	cargo build --workspace
	cargo test --workspace
	cargo test -p shm --features interleavings --test interleavings

# The protocols of shared memory in many more orders of their steps than `make test` tries;
# SEED picks others.
interleavings: install-deps
	INTERLEAVINGS=20 cargo test -p shm --features interleavings --test interleavings

# Clients killed at any moment, and some daemons; `make test` kills 500. TEST_SEED begins another series.
KILLS ?= 10000
kills: install-deps
	cargo build --workspace
	KILLS=$(KILLS) cargo test -p tests --test kills -- --nocapture

# Clients and daemons stopped at any moment, each instance so often; `make test` stops 1500 times.
STOPS ?= 50000
stops: install-deps
	cargo build --workspace
	STOPS=$(STOPS) cargo test -p tests --test stops -- --nocapture --test-threads 1

# A client of many daemons; `make test` starts 16. With 256 it needs 5 GiB of /dev/shm and many minutes.
DAEMONS ?= 256
many: install-deps
	cargo build --workspace
	DAEMONS=$(DAEMONS) cargo test -p tests --test many -- --nocapture

# So many random operations on files of a mount, with maps, each checked, by each way of requests; `make test`
# does 3600.
OPS ?= 1000000
fsx: install-deps
	@scripts/install-tools.sh
	cargo build --workspace
	FSX_OPS=$(OPS) cargo test -p tests --test fsx mount -- --nocapture

# Programs of three hosts that append, replace names and count under locks, so many things each; `make test` does
# 250 each. TEST_SEED begins another series.
ROUNDS ?= 2000
stress: install-deps
	cargo build --workspace
	ROUNDS=$(ROUNDS) cargo test -p tests --test stress -- --nocapture

# Programs on a mount, also those that take minutes: with `make headers` of a kernel.
large: install-deps
	@scripts/install-deps.sh test large
	cargo build --workspace
	cargo test -p tests --test mount_programs -- --nocapture

# Which pieces a policy of coolness leaves in memory, on traces; `make test` runs it, too, and prints nothing.
coolness:
	cargo test -p data --test coolness -- --nocapture

# Thresholds that set themselves beside the fixed ones: on traces, and by a real instance with plots in docs.
thresholds: build
	cargo test -p data --test thresholds -- --nocapture
	OUT=docs scripts/thresholds.sh

# A writer that outruns an SSD of RATE MB/s (112), for ten times the memory, and a burst that fits. Needs root.
outrun: build
	scripts/outrun.sh

# What staging and the drain are worth over a directory on a device of RATE MB/s (112). Needs root.
staging: build
	scripts/staging.sh

# Each fuzz target for so many seconds; it installs nothing but crates.
FUZZ_SECONDS ?= 20
fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

demo:
	@scripts/install-deps.sh demo
	cargo build --release --workspace
	demo/demo.sh

# PEERS adds file systems to compare with: docs/benchmarks.md.
bench:
	@scripts/install-deps.sh bench
	cargo build --release --workspace
	scripts/bench.sh $(PEERS)

lint: install-deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p shm --features interleavings --all-targets -- -D warnings
	cargo check --quiet --manifest-path fuzz/Cargo.toml --bins

# The preload library under a newer C library, in a chroot that debootstrap makes.
glibc-check: install-deps
	scripts/glibc-check.sh

# What is loaded into applications, under valgrind.
memcheck:
	@scripts/install-deps.sh memcheck
	scripts/memcheck.sh

fmt:
	cargo fmt --all

install-deps:
	@scripts/install-deps.sh
