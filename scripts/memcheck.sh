#!/usr/bin/env bash
# Runs programs on an instance under valgrind's memcheck: the code loaded into applications may access only
# its own memory. Only the suppressions of valgrind apply.
#
#   memcheck.sh [PATTERN]      only the programs whose name matches the shell pattern
#
# A run fails on any report of valgrind.
set -euo pipefail
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
    if timeout 300 env "${environment[@]}" MEMORY_IS_WATCHED=1 \
        valgrind --quiet --smc-check=all --max-stackframe=60000 --error-exitcode=99 "$@" >"$scratch/log" 2>&1 &&
        ! grep -q '^==' "$scratch/log"; then
        echo "ok    $title"
    else
        failed=$((failed + 1))
        echo "FAIL  $title"
        head -n 40 "$scratch/log" | sed 's/^/      | /'
    fi
}

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
echo "$((checked - failed)) clean, $failed with errors"
[ "$failed" -eq 0 ]
