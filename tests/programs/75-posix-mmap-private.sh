#!/usr/bin/env bash
# Maps that are read or private: contents, fork, offsets, mremap, mprotect, SIGBUS beyond the end.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_mmap_private.c
"$T/program" "$D"
