#!/usr/bin/env bash
# sendfile, copy_file_range, splice, vmsplice through pipes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_copy.c
"$T/program" "$D"
