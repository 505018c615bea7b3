#!/usr/bin/env bash
# C stdio: every fopen mode, seek, ungetc, setvbuf, freopen, tmpfile, getline, popen, fmemopen.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile stdio.c
TMPDIR=$D "$T/program" "$D"
