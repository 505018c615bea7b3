#!/usr/bin/env bash
# What a program does to an open file past the C library is right or fails; it never finds an empty file.
# A descriptor of a file never reads as an empty file past the library.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile behind.c
"$T/program" "$D"
