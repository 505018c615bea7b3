#!/usr/bin/env bash
# Shared writable maps: seen by read, by other maps and processes, msync, truncation, after close.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_mmap_shared.c
"$T/program" "$D"
