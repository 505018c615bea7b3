#!/usr/bin/env bash
# Programs that close all descriptors, take fixed high numbers by dup2, and go on with files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case closed_descriptors.c
"$T/program" "$D" </dev/null || fail "descriptors"
