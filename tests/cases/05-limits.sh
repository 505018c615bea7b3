#!/usr/bin/env bash
# Programs under limits that batch systems set: address space, descriptors, locked memory, data, stack, processes.
. "${BASH_SOURCE[0]%/*}/lib.sh"

number=0
for limits in "-v 4000000" "-v 1000000" "-v 300000" "-v 100000" "-n 16" "-n 10" "-l 0" "-d 200000" "-s 256" "-s unlimited" \
    "-c unlimited" "-i 0" "-x 0" "-q 0" "-v 200000 -n 12"; do
    number=$((number + 1))
    # shellcheck disable=SC2086  # words
    equal "$(ulimit ${limits% -n 12} && case $limits in *"-n 12") ulimit -n 12 ;; esac
        echo abc >"$D/f$number" && cp "$D/f$number" "$D/g$number" && cat "$D/g$number" 2>&1)" abc "ulimit $limits"
done
