#!/usr/bin/env bash
# Rare calls and their errors: ioctl, fallocate, preadv2, copies between files, O_DIRECT, times, names, leases, holes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile_case rare_calls.c
"$T/program" "$D" || fail "odd calls"
