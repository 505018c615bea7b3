#!/usr/bin/env bash
# A mapped file is cut and grown again: accesses beyond the end raise SIGBUS, grown parts are zeros, and no other file
# changes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case cut_while_mapped.c
"$T/program" "$D" || fail "cut while mapped: $? (1 no SIGBUS, 2 map and file differ, 4 other files were changed)"
