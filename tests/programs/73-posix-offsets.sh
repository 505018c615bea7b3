#!/usr/bin/env bash
# Shared offsets: dup, dup2, dup3, fcntl, fork, exec, close-on-exec, O_APPEND, close_range.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_offsets.c
"$T/program" "$D"
