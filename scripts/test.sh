#!/usr/bin/env bash
# Runs one of the three gates, and prints in its last lines why tests failed, the numbers of tests that passed,
# failed and were skipped, and which were skipped or passed only when they were repeated.
#
#   test.sh check          format, lints, rules of the repository, unit tests of the cores
#   test.sh test [AREA]    everything that a change must pass
#   test.sh soak [AREA]    everything, with TEST_SCALE times as many rounds (default 5), and each fuzz target
#                          for FUZZ_SECONDS (default 30)
#
# AREA keeps the tests whose path contains the word: quota, mount::, soak::fsx. Fuzz targets run in `soak fuzz`, and
# in `soak` without a word.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gate=$1
area=${2:-}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
log=$target/$gate.log
export TEST_SKIPPED=$PWD/$target/$gate-skipped.txt
export TEST_SHOWN=$PWD/$target/$gate-shown.txt
case $target in /*) TEST_SKIPPED=$target/$gate-skipped.txt TEST_SHOWN=$target/$gate-shown.txt ;; esac
rm -f "$TEST_SKIPPED" "$TEST_SHOWN"
# A test that is about the history says so.
export FOREBAY_MONITOR=off
: >"$log"
# More failures than these are no accident.
repeats_max=3
repeated=()

# Sum of a column of cargo's results so far, and of lines like them: 4 has the passed tests, 6 the failed ones.
total() {
    awk -v column="$1" '/^test result:/ { sum += $column } END { print sum + 0 }' "$log"
}

# Why tests failed, each in a few lines, for a reader that has the end of the output alone.
reasons() {
    awk '/^stack backtrace:|^note: run with/ { rest = 0 }
        /thread .* panicked at / { rest = 8 }
        rest-- > 0 { print "  " substr($0, 1, 1000) }' "$log" | head -n 100
}

summary() {
    local status=$? passed failed skipped=0
    [ ! -s "$TEST_SHOWN" ] || cat "$TEST_SHOWN"
    passed=$(total 4)
    failed=$(total 6)
    if [ -s "$TEST_SKIPPED" ]; then
        skipped=$(sort -u "$TEST_SKIPPED" | wc -l)
        echo "skipped:"
        sort -u "$TEST_SKIPPED" | sed 's/^/  /'
    fi
    if [ ${#repeated[@]} -gt 0 ]; then
        failed=$((failed - ${#repeated[@]}))
        echo "failed once, and passed when repeated (a rare fault: $log has the first output):"
        printf '  %s\n' "${repeated[@]}"
    fi
    if [ "$status" -ne 0 ] || [ ${#repeated[@]} -gt 0 ]; then
        reasons
    fi
    [ "$status" -eq 0 ] || echo "make $gate failed: see $log for the whole output"
    echo "$passed passed, $failed failed, $skipped skipped"
}
trap summary EXIT

# Runs a command and keeps what it prints for the summary.
run() {
    "$@" 2>&1 | tee -a "$log"
}

# Runs tests: run_tests CARGO-ARGUMENTS -- TEST-ARGUMENTS.
run_tests() {
    # All binaries, also after one has failed.
    run cargo test --no-fail-fast "$@"
}

# Runs all tests. In `make test`, a few that fail are repeated, alone: one that then passes is named in the last
# lines and fails nothing, so that a rare fault is seen and reported without refusing the change beside it.
# `make soak` exists to find such faults: it repeats nothing.
run_tests_and_repeat() {
    local failed status=0
    run_tests --workspace --lib --bins --tests -- "$@" || status=$?
    [ "$status" -ne 0 ] || return 0
    mapfile -t failed < <(sed -nE 's/^.*\btest ([a-z0-9_:]+) \.\.\. FAILED$/\1/p' "$log" | sort -u)
    # A binary that does not compile, or ends by a signal, has failures without names.
    if [ "$gate" != test ] || [ ${#failed[@]} -gt "$repeats_max" ] ||
        [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -ne "$(total 6)" ] || grep -q '(signal: ' "$log"; then
        return "$status"
    fi
    echo "repeated alone: ${failed[*]}" | tee -a "$log"
    RUST_TEST_THREADS=1 run_tests --workspace --lib --bins --tests -- --exact "${failed[@]}" || return "$status"
    repeated=("${failed[@]}")
}

# Each fuzz target, as a test; the first that fails ends them. FUZZ_SECONDS is for each.
fuzz() {
    local status=0 passed failed
    run scripts/fuzz.sh "${FUZZ_SECONDS:-30}" || status=$?
    # Where none passed grep prints 0, and fails.
    passed=$(grep -cE '^#[0-9]+.*DONE' "$log") || true
    failed=$((status == 0 ? 0 : 1))
    # In the form of cargo's results, which the summary adds up.
    echo "test result: fuzz. $passed passed; $failed failed" | tee -a "$log"
    return "$status"
}

check() {
    run cargo fmt --all --check
    run cargo clippy --quiet --workspace --all-targets -- -D warnings
    # Fuzz targets are a workspace of their own: a change of what they use must not break them unseen.
    run cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir "$target/fuzz" --bins
    run "$target/tools/bin/cargo-deny" --log-level error check licenses bans sources
    run_tests --quiet -p tests --test tidy -- --nocapture
    run_tests --quiet -p wire -p encoding -p placement -p tokens -p fuse -p gateway -p config -p data -p metadata --lib
}

all_tests() {
    local filter=()
    [ -z "$area" ] || filter+=("$area")
    # `soak` is the area of tests that take minutes; `make soak` runs it, and so does its name.
    [ "$gate" = soak ] || [[ $area == *soak* ]] || filter+=(--skip soak::)
    # End-to-end tests wait for daemons and disks more than they compute.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
    # The programs first: tests run those beside them.
    run cargo build --quiet --workspace || return
    local status=0
    run_tests_and_repeat "${filter[@]}" || status=$?
    run_tests -p shm --features interleavings --test interleavings -- ${area:+"$area"} || status=$?
    return "$status"
}

case $gate in
check) check ;;
test) all_tests ;;
soak)
    export TEST_SCALE=${TEST_SCALE:-5} INTERLEAVINGS=${INTERLEAVINGS:-10}
    status=0
    [ "$area" = fuzz ] || all_tests || status=$?
    [ -n "$area" ] && [ "$area" != fuzz ] || fuzz || status=$?
    exit "$status"
    ;;
*) echo "usage: test.sh check | test [AREA] | soak [AREA]" >&2; exit 2 ;;
esac
