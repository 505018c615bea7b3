#!/usr/bin/env bash
# Modes of fopen, buffers, freopen, popen, and what is written at exit, by destructors and by the end of threads.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case stdio_modes.c
"$T/program" "$D" || fail "stdio"
[ "$(cat "$D/late")" = "not flushed by hand" ] || fail "what was buffered at exit is lost"
[ "$(cat "$D/atexit" "$D/destructor")" = xd ] || fail "output of exit handlers is lost"
