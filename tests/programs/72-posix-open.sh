#!/usr/bin/env bash
# open flags: creation, exclusion, truncation, access modes, directories, links, long names.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_open.c
"$T/program" "$D"
