#!/usr/bin/env bash
# A statically linked program, as the command and started by a shell.
# preload-only: refused: is statically linked
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

compile relay.c -static
cd "$D"
"$T/program" say text >file
equal "$(cat file)" text
equal "$("$T/program" line <file)" text
cp "$T/program" here
./here say again >>file
equal "$(tail -n 1 file)" again
