#!/usr/bin/env bash
# A debugger sets a breakpoint in a program that is a file here.
# preload-only: refused: failed: no breakpoint
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need gdb gcc
cd "$D"
printf 'int twice(int a) { return 2 * a; }\nint main(void) { return twice(1); }\n' >main.c
gcc -g -O0 -o "$T/program" main.c
cp "$T/program" program
debug() { gdb -q -nx -batch -ex 'set debuginfod enabled off' -ex 'break twice' -ex run -ex 'print a' -ex kill "$1" 2>&1; }
debug "$T/program" | grep '^\$1 = 1' >/dev/null || { echo "not allowed: debuggers"; exit 77; }
debug ./program | grep '^\$1 = 1' >/dev/null || fail "no breakpoint"
