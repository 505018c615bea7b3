#!/usr/bin/env bash
# A file that may only be written is appended to: by write, by pwrite, and with RWF_APPEND.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case append_write_only.c
"$T/program" "$D/log" || fail "appends"
