# What a person or CI runs. Each target installs what it lacks first.
.PHONY: build test lint fmt bench demo install-deps

build: install-deps
	cargo build --release --workspace

test: install-deps
	cargo test --workspace

lint: install-deps
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

bench: build
	scripts/bench.sh

install-deps:
	@scripts/install-deps.sh
