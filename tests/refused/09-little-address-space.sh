#!/usr/bin/env bash
# A program that may take little address space.
# preload-only: refused: Cannot allocate memory
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

cd "$D"
(ulimit -v 100000; echo text >file; cp file copy; cat copy) >"$T/out"
equal "$(cat "$T/out")" text
