#!/usr/bin/env bash
# Threads: shared descriptors, creation by eight at once, one O_EXCL winner, pread beside pwrite.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_threads.c -pthread
"$T/program" "$D"
