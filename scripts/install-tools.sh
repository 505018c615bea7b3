#!/usr/bin/env bash
# Installs, below target/tools, programs of the package registry that tests run; only what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${CARGO_TARGET_DIR:-target}/tools
install() {
    if [ ! -x "$tools/bin/$1" ]; then
        cargo install --quiet --locked --version "$2" --root "$tools" --target-dir "$tools/build" "$1"
        rm -rf "$tools/build"
    fi
}
install fsx 0.3.2
install pjdfstest 0.2.2
