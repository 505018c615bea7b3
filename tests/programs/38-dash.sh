#!/usr/bin/env bash
# dash: redirections, cd, globbing, here documents, and a script run from the file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need dash
cat >"$D/script" <<'END'
#!/bin/dash
set -eu
cd "$1"
mkdir sub; cd sub
echo a >x; echo b >>x
while read -r line; do echo "<$line>"; done <x >y
exec 5<y; read -r first <&5; exec 5<&-
cat <<EOF >z
first $first
EOF
for name in *; do echo "$name"; done >../names
[ -f x ] && [ ! -e q ] && test x -nt ../script
cat x y z | wc -l
END
chmod +x "$D/script"
equal "$("$D/script" "$D" | tr -d ' ')" 5
equal "$(tr '\n' ' ' <"$D/names")" "x y z "
equal "$(cat "$D/sub/z")" "first <a>"
equal "$(dash -c 'cd "$1" && ls sub | wc -l' - "$D")" 3
