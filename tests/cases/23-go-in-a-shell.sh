#!/usr/bin/env bash
# A Go program that a shell starts in a directory of the file system: its files are there.
# preload-only: refused: the preload library cannot be loaded
. "${BASH_SOURCE[0]%/*}/lib.sh"

need restic
mkdir "$T/host" "$D/in"
cd "$T/host" || exit 1
export RESTIC_PASSWORD=x RESTIC_CACHE_DIR=$T/cache
(cd "$D/in" && restic init -q -r repository) || fail "restic"
equal "$(ls "$T/host")" "" "in the host's directory"
echo text >"$D/in/file"
(cd "$D/in" && restic backup -q -r repository file && restic restore -q -r repository latest --target out) || fail "restic"
cmp "$D/in/file" "$D/in/out/file" || cmp "$D/in/file" "$(find "$D/in/out" -name file)"
