#!/usr/bin/env bash
# The handler of a timer writes to files while the program is inside calls on files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case signal_handlers.c
"$T/program" "$D" || fail "calls of a handler"
