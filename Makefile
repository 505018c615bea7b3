# Targets for people and for CI. Each installs what it lacks first.
.PHONY: build check test soak demo bench install fmt fuzz figures glibc-check memcheck install-deps

build: install-deps
	cargo build --release --workspace

# Three gates: CONTRIBUTING.md.
# Format, lints, rules of the repository, unit tests of the cores: a minute when warm.
check: install-deps
	@scripts/install-tools.sh cargo-deny
	@scripts/test.sh check

# Everything that a change must pass. AREA=quota runs the tests whose path contains the word.
AREA ?=
test:
	@scripts/install-deps.sh test
	@scripts/test.sh test $(AREA)

# Everything, with TEST_SCALE=5 times the rounds: public suites, kills, stops, all programs by all ways, and each
# fuzz target for FUZZ_SECONDS=30. AREA as above, or AREA=fuzz; TEST_SEED begins another series.
soak:
	@scripts/install-deps.sh test large
	@scripts/install-tools.sh fsx pjdfstest python
	@scripts/test.sh soak $(AREA)

demo:
	@scripts/install-deps.sh demo
	cargo build --release --workspace
	demo/demo.sh

# Side by side with tmpfs, the local disk, and PEERS. CHECK=1 compares each ratio with the reference in
# docs/benchmarks/reference.json and lists what fell by more than its own spread.
CHECK ?=
bench:
	@scripts/install-deps.sh bench
	cargo build --release --workspace
	scripts/bench.sh $(if $(CHECK),--check docs/benchmarks/reference.json) $(PEERS)

# Programs, library, man pages and completions below PREFIX. It builds nothing, so that sudo may run it.
PREFIX ?= /usr/local
install:
	scripts/install.sh $(PREFIX)

# Each fuzz target for so many seconds.
FUZZ_SECONDS ?= 20
fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

# Measurements that need root and a slow device: watermarks that set themselves, a writer that outruns an
# SSD, staging and draining. docs/benchmarks has their results.
figures: build
	cargo test -p data --test it replacement -- --nocapture
	cargo test -p data --test it watermarks -- --nocapture
	OUT=docs/benchmarks scripts/watermarks.sh
	scripts/outrun.sh
	scripts/staging.sh

# The preload library under a newer C library, in a chroot that debootstrap makes.
glibc-check: install-deps
	scripts/glibc-check.sh

# The library that is loaded into applications, under valgrind.
memcheck:
	@scripts/install-deps.sh memcheck
	scripts/memcheck.sh

fmt:
	cargo fmt --all

install-deps:
	@scripts/install-deps.sh
