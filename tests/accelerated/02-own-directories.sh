#!/usr/bin/env bash
# Threads with working directories of their own, and a changed root.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

compile own_directories.c -pthread
"$T/program" "$D"
