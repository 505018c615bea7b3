#!/usr/bin/env bash
# stat, statx, utimensat, chmod, access, times that move, extended attributes or a clear refusal.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_attributes.c
"$T/program" "$D"
