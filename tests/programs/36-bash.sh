#!/usr/bin/env bash
# bash: redirections, here documents, append, while read, exec 3<>, process substitution, noclobber.
. "${BASH_SOURCE[0]%/*}/lib.sh"

cd "$D"
echo one >f; echo two >>f; echo three 1>>f 2>&1
equal "$(<f)" $'one\ntwo\nthree'
cat >here <<END
value $((6 * 7))
END
equal "$(<here)" "value 42"
n=0; while read -r line; do n=$((n + ${#line})); done <f
equal $n 11
exec 3<>f; read -r -u 3 first; printf 'TWO' >&3; exec 3>&-
equal "$first $(tr '\n' ' ' <f)" "one one TWO three "
exec 4>>f; echo four >&4; (echo five >&4); exec 4>&-
equal "$(tail -n 2 f | tr '\n' ' ')" "four five "
diff <(sort f) <(sort -r f | sort)
set -o noclobber; refuses bash -o noclobber -c 'echo x >f'; echo y >|f; set +o noclobber
equal "$(<f)" y
{ echo out; echo err >&2; } >both 2>&1; equal "$(wc -l <both)" 2
{ echo out; echo err >&2; } >o 2>e; equal "$(<o) $(<e)" "out err"
cat <f >g; cat g g >h; equal "$(<h)" $'y\ny'
[ -e f ] && [ ! -e nothing ] && [ -s f ] && [ -d . ] && [ ! -L f ] && [ f -ef "$D/f" ] && [ -w f ]
touch -d 2001-01-01 old; [ f -nt old ]
mkdir dir; for i in {1..20}; do echo "$i" >"dir/n$i"; done
set -- dir/*; equal $# 20; set -- dir/n1?; equal $# 10
mapfile -t lines < <(sort -n dir/*); equal "${#lines[@]} ${lines[19]}" "20 20"
head -c 1000000 <(yes) | tee copy | wc -c >count; equal "$(<count) $(stat -c %s copy)" "1000000 1000000"
: >f; equal "$(stat -c %s f)" 0
printf 'echo sourced %s\n' "$$" >script
# shellcheck disable=SC1091
equal "$(. ./script)" "sourced $$"
chmod +x script; equal "$(bash script)" "sourced $$"
(cd dir && echo here >../up); equal "$(<up)" here
rm -- *[!t] 2>/dev/null || true
