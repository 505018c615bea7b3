#!/usr/bin/env bash
# Runs programs on an instance under valgrind's memcheck: the code loaded into applications may access only
# its own memory. Only the suppressions of valgrind apply.
#
#   memcheck.sh [PATTERN]      only the programs whose name matches the shell pattern
#
# A run fails on any report of valgrind, and on a program that takes longer than LIMIT seconds. Its last lines
# name what it left out, and why.
set -euo pipefail
LIMIT=300
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pattern=${1:-*}
target=${CARGO_TARGET_DIR:-$PWD/target}
forebay=$target/debug/forebay
name=memcheck-$$
scratch=$(mktemp -d)
clean() {
    # The instance may not be running, and the script must keep the status of the checks.
    "$forebay" stop --name "$name" >/dev/null || echo "memcheck: no instance to stop" >&2
    rm -rf "$scratch"
}
trap clean EXIT

# With few optimisations the compiler has rustix compare a register of which half is padding.
cargo build --quiet --workspace --config 'profile.dev.package.rustix.opt-level=3'
# A small arena: valgrind keeps a record for each mapped byte.
"$forebay" start --local 2 --memory 96MiB --name "$name" >/dev/null
mapfile -t environment < <("$forebay" run --name "$name" -- env | grep -E '^(FOREBAY_|LD_PRELOAD=)')

checked=0
failed=0
# check NAME COMMAND...: checks the command and its forks. Programs that they execute run natively: valgrind
# would execute itself, a static program, which is refused with open files of an instance.
check() {
    local title=$1
    shift
    # shellcheck disable=SC2053  # the right side is a pattern
    [[ $title == $pattern ]] || return 0
    checked=$((checked + 1))
    # Stacks of the library are 256 KiB apart: without a limit, a change between two looks like frames that end.
    local status=0
    timeout --kill-after=10 "$LIMIT" env "${environment[@]}" MEMORY_IS_WATCHED=1 \
        valgrind --quiet --smc-check=all --max-stackframe=60000 --error-exitcode=99 "$@" >"$scratch/log" 2>&1 ||
        status=$?
    if [ "$status" -eq 0 ] && ! grep -q '^==' "$scratch/log"; then
        echo "ok    $title"
        return
    fi
    failed=$((failed + 1))
    case $status in
    124 | 137) echo "FAIL  $title: not over after $LIMIT s" ;;
    *) echo "FAIL  $title: status $status" ;;
    esac
    head -n 40 "$scratch/log" | sed 's/^/      | /'
}

skips=()
# skip NAME WHAT: what of the program is left out under valgrind. The programs see MEMORY_IS_WATCHED.
skip() {
    # shellcheck disable=SC2053  # the right side is a pattern
    [[ $1 != $pattern ]] || skips+=("$1: $2")
}
skip posix_children "more processes than fit (480 under valgrind)"
# A signal that arrives in a call is queued again, and its handler blocks signals in the code that it interrupted,
# until the end of the call. Valgrind restores the mask that it saved itself: the signal is delivered for ever.
skip posix_locks "a signal ends a wait for a lock (valgrind ignores the mask that a handler sets)"
skip posix_poll "a timer fires during file calls (the same)"
skip posix_threads "transfers to inaccessible memory while another thread closes the file (valgrind reports each)"

for source in tests/programs/src/posix_*.c tests/programs/src/stdio.c; do
    title=$(basename "$source" .c)
    gcc -O1 -g -pthread -Itests/programs/src -o "$scratch/$title" "$source"
    "$forebay" run --name "$name" -- mkdir -p "/forebay/$title"
    check "$title" "$scratch/$title" "/forebay/$title"
done
dir=/forebay/tools
check mkdir mkdir -p $dir
check cp cp -a scripts $dir/scripts
check mv mv $dir/scripts $dir/moved
check tar tar -C $dir -cf $dir/t.tar moved
check ls ls -lR $dir
check sed sed -i s/bash/sh/ $dir/moved/bench.sh
check shell sh -c "cd $dir && cat moved/*.sh | sort > sorted && (echo more; wc -c sorted) >> sorted"
check sqlite3 sqlite3 $dir/db "create table t(a); insert into t values(1),(2); pragma integrity_check;"
check python3 python3 -S -c "
import mmap
with open('$dir/map', 'wb+') as f:
    f.truncate(1 << 20)
    m = mmap.mmap(f.fileno(), 1 << 20)
    m[5000:5005] = b'hello'
    m.close()
    f.seek(5000)
    assert f.read(5) == b'hello'"
check rm rm -r $dir
[ "$checked" -gt 0 ] || { echo "memcheck: no program matches $pattern" >&2; exit 2; }
[ "${#skips[@]}" -eq 0 ] || printf 'left out  %s\n' "${skips[@]}"
echo "$((checked - failed)) clean, $failed with errors"
[ "$failed" -eq 0 ]
