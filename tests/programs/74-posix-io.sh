#!/usr/bin/env bash
# pread, pwrite, preadv2, readv, lseek with SEEK_DATA and SEEK_HOLE, fallocate, ftruncate, limits.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_io.c
"$T/program" "$D"
