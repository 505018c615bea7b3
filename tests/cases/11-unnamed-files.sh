#!/usr/bin/env bash
# O_TMPFILE and links to such files, exchanging and careful renames, files removed while open, removed directories.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case unnamed_files.c
"$T/program" "$D" || fail "unnamed files"
