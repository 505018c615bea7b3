#!/usr/bin/env bash
# Java NIO: file mappings shared between two Java virtual machines, force, private mappings, locks, transfers.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need javac java
export JAVA_TOOL_OPTIONS="-Xshare:auto -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir=$T"
javac -d "$D/classes" "${BASH_SOURCE[0]%/*}/src/Maps.java" 2>"$T/javac.log" || fail "$(cat "$T/javac.log")"
cd "$D"
equal "$(java -cp classes Maps first data 2>"$T/java.log")" "all well"
