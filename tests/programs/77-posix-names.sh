#!/usr/bin/env bash
# link, rename in all cases, renameat2 NOREPLACE and EXCHANGE, O_TMPFILE with linkat, unlinked open files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_names.c
"$T/program" "$D"
