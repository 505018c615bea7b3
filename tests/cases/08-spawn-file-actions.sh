#!/usr/bin/env bash
# posix_spawn with file actions, and children of vfork that open, close and change the directory before exec: the
# descriptors and the directory of the parent stay as they were.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case spawn_file_actions.c
"$T/program" "$D" || fail "spawn"
