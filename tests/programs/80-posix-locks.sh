#!/usr/bin/env bash
# Record locks, open-file-description locks and flock between processes and descriptors; F_GETLK.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_locks.c
"$T/program" "$D"
