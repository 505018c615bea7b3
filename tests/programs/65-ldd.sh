#!/usr/bin/env bash
# ldd and the dynamic loader run on a program and a library of the file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need ldd gcc
cd "$D"
echo 'int f(void) { return 3; }' >f.c
echo 'int f(void); int main(void) { return f(); }' >main.c
gcc -shared -fPIC -o libf.so f.c
gcc -o program main.c -L. -lf -Wl,-rpath,"$D"
ldd program | grep "libf.so => $D/libf.so" >/dev/null
loader=$(readelf -l program | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
status=0
"$loader" "$D/program" || status=$?
equal $status 3 "run by the loader"
printf '#!%s\nnothing\n' "$D/program" >script
chmod +x script
status=0
./script || status=$?
equal $status 3 "as an interpreter"
printf '#!/bin/sh\n. "$1"\necho "$0 $value"\n' >show
echo value=read >part
chmod +x show
equal "$(./show ./part)" "./show read"
refuses ./part
