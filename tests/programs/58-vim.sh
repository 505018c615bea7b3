#!/usr/bin/env bash
# vim -es: edits with a swap file, a backup and undo on the file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need vim
seq 1000 >"$D/file"
cd "$D"
export HOME=$D
vim -u NONE -N -es -c 'set directory=. backup backupskip= backupdir=. undofile undodir=.' -c '%s/^5/five/' -c '$d' -c 'w' -c '1,10w part' -c 'q' file </dev/null
seq 999 | sed 's/^5/five/' | cmp - file
seq 1000 | cmp - file~
equal "$(wc -l <part)" 10
vim -u NONE -N -es -c 'r part' -c 'saveas! new' -c 'q' file </dev/null
equal "$(wc -l <new)" 1009
vim -u NONE -N -es -c 'set nowritebackup backupcopy=yes' -c 'g/five/d' -c 'x' file </dev/null
equal "$(grep -c five file || true)" 0
equal "$(find . -name '*.sw?')" "" "swap files left"
