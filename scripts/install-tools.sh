#!/usr/bin/env bash
# Installs, below target/tools, the programs of the package registry that its arguments name; only what is
# missing: cargo-deny for `make check`, fsx and pjdfstest for `make soak`; and `python`, a Python with packages
# of cases of tests/cases, which are skipped without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${CARGO_TARGET_DIR:-target}/tools
install() {
    if [ ! -x "$tools/bin/$1" ]; then
        cargo install --quiet --locked "${@:3}" --version "$2" --root "$tools" --target-dir "$tools/build" "$1"
        rm -rf "$tools/build"
    fi
}
for tool in "$@"; do
    case $tool in
    # Without its default features it needs neither git nor a database of advisories from the network.
    cargo-deny) install cargo-deny 0.20.2 --no-default-features ;;
    fsx) install fsx 0.3.2 ;;
    pjdfstest) install pjdfstest 0.2.2 ;;
    python)
        if [ ! -x "$tools/python/bin/uv" ]; then
            rm -rf "$tools/python"
            if ! { /usr/bin/python3 -m venv "$tools/python" &&
                "$tools/python/bin/pip" install --quiet uv==0.5.11 numpy==2.2.1 safetensors==0.4.5; }; then
                rm -rf "$tools/python"
                echo "install-tools: no Python packages: their cases are skipped" >&2
            fi
        fi
        ;;
    *) echo "install-tools: unknown tool: $tool" >&2; exit 2 ;;
    esac
done
