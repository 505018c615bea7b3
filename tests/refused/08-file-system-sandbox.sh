#!/usr/bin/env bash
# A program in a sandbox that shows the directory at another path.
# preload-only: refused: mount: 
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need unshare
unshare --mount true 2>/dev/null || { echo "not allowed: mount namespaces"; exit 77; }
cd "$D"
echo text >file
mkdir "$T/bound"
unshare --mount sh -c 'mount --bind "$D" "$T/bound" && cat "$T/bound/file" && echo more >>"$T/bound/file"' >"$T/out"
equal "$(cat "$T/out")" text
equal "$(tail -n 1 file)" more
