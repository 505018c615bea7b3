#!/usr/bin/env bash
# A program in a PID namespace of its own.
# preload-only: refused: Operation not supported
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need unshare
unshare --pid --fork true 2>/dev/null || { echo "not allowed: PID namespaces"; exit 77; }
cd "$D"
unshare --pid --fork sh -c 'echo text >file && cat file' >"$T/out"
equal "$(cat "$T/out")" text
