#!/usr/bin/env bash
# Installs the built programs, the library, man pages and shell completions below a prefix:
#
#   install.sh [PREFIX]       default /usr/local; DESTDIR is put in front, for packagers
#
# The programs find each other because they are in one directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

built=${CARGO_TARGET_DIR:-target}/release
prefix=${DESTDIR:-}${1:-/usr/local}
[ -x "$built/forebay" ] || { echo "install: $built/forebay is missing: run make build" >&2; exit 1; }

install -d "$prefix/lib/forebay" "$prefix/bin" "$prefix/share/doc/forebay"
programs=(forebay forebayd forebay-mount forebay-writeback libforebay_preload.so)
for program in "${programs[@]}"; do
    install -m 755 "$built/$program" "$prefix/lib/forebay/$program"
done
ln -sfn ../lib/forebay/forebay "$prefix/bin/forebay"

"$built/forebay" man "$prefix/share/man/man1"
for shell in bash zsh fish; do
    case $shell in
    bash) file=$prefix/share/bash-completion/completions/forebay ;;
    zsh) file=$prefix/share/zsh/site-functions/_forebay ;;
    fish) file=$prefix/share/fish/vendor_completions.d/forebay.fish ;;
    esac
    install -d "${file%/*}"
    "$built/forebay" completions "$shell" >"$file"
done
install -m 644 README.md LICENSE THIRD_PARTY.md "$prefix/share/doc/forebay"
echo "installed forebay in $prefix/bin, and its parts in $prefix/lib/forebay"
