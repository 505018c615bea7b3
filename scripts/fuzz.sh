#!/usr/bin/env bash
# Builds the fuzz targets with the stable toolchain and runs each for SECONDS (default 20), one after
# the other, from seeds that they generate and from the corpus of earlier runs.
# usage: scripts/fuzz.sh [SECONDS [TARGET..]]
# The results are in fuzz/target.
# Fails with the path of the input at the first crash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../fuzz"

seconds=${1:-20}
[ $# -eq 0 ] || shift
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(sed -n 's/^path = "targets\/\(.*\)\.rs"/\1/p' Cargo.toml)

# The coverage that libFuzzer reads. With --target, build scripts are built without it.
flags=(
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    --cfg fuzzing
)
host=$(rustc -vV | sed -n 's/^host: //p')
# Separate from other builds of the same tree.
target_directory=${CARGO_TARGET_DIR:-target}/fuzz
RUSTFLAGS="${flags[*]}" cargo build --release --target "$host" --target-dir "$target_directory" --bins

for target in "${targets[@]}"; do
    corpus=target/corpus/$target
    artifacts=target/artifacts/$target
    mkdir -p "$corpus" "$artifacts"
    echo "fuzz $target: $seconds seconds"
    log=$artifacts/log
    if ! FUZZ_SEEDS=$corpus "$target_directory/$host/release/$target" -max_total_time="$seconds" \
        -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$PWD/$artifacts/" -verbosity=1 \
        -print_final_stats=1 "$corpus" >"$log" 2>&1; then
        grep -v '^#' "$log" | tail -60
        echo "fuzz $target: failed; input: $(sed -n 's/.*Test unit written to //p' "$log" | tail -1)"
        exit 1
    fi
    grep -E '^#[0-9]+.*DONE' "$log" || tail -3 "$log"
done
