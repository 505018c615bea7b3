#!/usr/bin/env bash
# fallocate in all modes, holes, offsets near 2^63, renames, nameless files, nodes, long names, times, compared with tmpfs.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
same_as /dev/shm files.sh
