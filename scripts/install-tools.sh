#!/usr/bin/env bash
# Installs, below target/tools, programs of the package registry that tests run; only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${CARGO_TARGET_DIR:-target}/tools
if [ ! -x "$tools/bin/fsx" ]; then
    cargo install --quiet --locked --version 0.3.2 --root "$tools" --target-dir "$tools/build" fsx
    rm -rf "$tools/build"
fi
