#!/usr/bin/env bash
# Bad pointers give EFAULT and never a crash; names may end with their page.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_faults.c
"$T/program" "$D"
