#!/usr/bin/env bash
# Programs that write to, cut or close descriptors which they never opened: those of the preload library are out of reach.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case stray_calls.c -I"$SRC"
bytes 300000 >"$T/before"
cp "$T/before" "$D/before"
"$T/program" "$D" </dev/null || fail "stray calls"
cmp "$T/before" "$D/before" || fail "a file changed"
