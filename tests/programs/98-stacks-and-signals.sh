#!/usr/bin/env bash
# A file call takes at most 2 KiB of the caller's stack. Signal handlers run on the program's own stacks; one that
# leaves a call by a jump, a fault in a call, and the cancellation of a thread leave nothing behind.
. "${BASH_SOURCE[0]%/*}/lib.sh"

# Bound at the start: else the first call of each function binds it, and saves all registers of the processor
# on this stack (with AVX-512, more than 2 KiB).
compile guest.c -pthread -D_GNU_SOURCE -Wl,-z,now
for part in depth small alternate handlers actions jumps order faults locks pipes early exec steps cancel fork first; do
    mkdir "$D/$part"
    timeout 300 "$T/program" "$part" "$D/$part" || fail "$part: $?"
done
