#!/usr/bin/env bash
# Shared mappings: of an empty file, grown, cut, moved, partly unmapped, of other processes; their rights; msync.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case shared_mappings.c
"$T/program" "$D" || fail "maps"
