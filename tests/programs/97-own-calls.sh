#!/usr/bin/env bash
# A program with system calls of its own and those of the C library sees the same files by both.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile own_calls.c
"$T/program" "$D"
compile own_calls.c -O2 -fno-pie -no-pie
mkdir "$D/second" "$D/third"
"$T/program" "$D/second"
compile own_calls.c -O0 -fno-inline
"$T/program" "$D/third"

# The same in libraries that are opened while the program runs, one of which lies in the instance, and closed again.
compile own_calls.c -O2 -shared -fPIC -Dmain=run
mv "$T/program" "$T/one.so"
compile own_calls.c -O0 -fno-inline -shared -fPIC -Dmain=run
mv "$T/program" "$T/two.so"
cp "$T/one.so" "$D/three.so"
compile opener.c -pthread -ldl
for way in alone threads; do
    mkdir "$D/$way"
    "$T/program" "$D/$way" "$way" "$T/one.so" "$T/two.so" "$D/three.so"
done
