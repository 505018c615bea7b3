#!/usr/bin/env bash
# readdir of 10,000 entries exactly once, while deleting, telldir, seekdir, rewinddir, scandir, nftw.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_readdir.c
"$T/program" "$D"
