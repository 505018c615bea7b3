#!/usr/bin/env bash
# openat, fstatat, mkdirat, unlinkat, symlinkat, faccessat, fchdir, getcwd, O_PATH, AT_EMPTY_PATH, /proc/self/fd.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_at.c
"$T/program" "$D"
