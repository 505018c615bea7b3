#!/usr/bin/env bash
# Measures tmpfs, the local disk, and Forebay with one and with four daemons, side by side, and writes
# the tables to the terminal and all values to target/bench.json. Further options go to forebay-bench;
# docs/benchmarks/README.md explains the tables and how to include another file system.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
disk=$(mktemp -d "${BENCH_DISK:-/var/tmp}/forebay-bench-XXXXXX")
memory=$(mktemp -d /dev/shm/bench-tmpfs-XXXXXX)
trap 'rm -rf "$disk" "$memory"' EXIT

echo "processors: $(nproc), kernel: $(uname -r), disk: $(stat -f -c %T "$disk"), load: $(cut -d' ' -f1-3 /proc/loadavg)"
status=0
"$target/release/forebay-bench" \
    --on "tmpfs=$memory" --on "disk=$disk" --forebay 1 --forebay 4 --seldom disk,fio,mpi,io500 \
    --json "$target/bench.json" --history "$target/bench-history.jsonl" --plot "$target/bench.svg" "$@" ||
    status=$?
echo "all values: $target/bench.json; all runs: $target/bench-history.jsonl, plot: $target/bench.svg"
exit "$status"
