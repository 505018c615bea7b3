#!/usr/bin/env bash
# realpath, readlink -f, pwd -P, cd through links and .. behave as on any file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

mkdir -p "$D/a/b/c"
ln -s a/b "$D/short"
ln -s ../../.. "$D/a/b/c/up"
: >"$D/a/b/c/file"
root=$(realpath "$D")
equal "$(realpath "$D/short/c/file")" "$root/a/b/c/file"
equal "$(readlink -f "$D/short/c/up/short/c/../c/file")" "$root/a/b/c/file"
equal "$(realpath -m "$D/absent/x/../y")" "$root/absent/y"
refuses realpath -e "$D/absent"
refuses readlink -f "$D/absent/x"
equal "$(realpath --relative-to="$D/a" "$D/short/c")" b/c
equal "$(cd "$D/short/c" && /bin/pwd -P)" "$root/a/b/c"
equal "$(cd "$D/short/c" && pwd -L)" "$D/short/c"
equal "$(cd "$D/short/c" && cd -P .. && /bin/pwd)" "$root/a/b"
equal "$(cd "$D/a/b/c" && cat ./../../b/c/file && ls ..)" c
equal "$(cd "$D/a" && env -C b/c /bin/pwd -P)" "$root/a/b/c"
refuses cat "$D/a/b/c/file/"
refuses cat "$D/a/b/c/file/.."
(cd / && [ -e "$D/../$(basename "$D")/a" ]) || fail ".. above the directory"
