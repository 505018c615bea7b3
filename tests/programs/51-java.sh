#!/usr/bin/env bash
# java: javac, jar, the Files API, FileChannel, memory-mapped files, file locks.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need javac java jar
cp "$SRC/Program.java" "$D"
cd "$D"
export JAVA_TOOL_OPTIONS="-Xshare:auto -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir=$T"
javac -d classes Program.java 2>"$T/javac.log" || fail "$(cat "$T/javac.log")"
equal "$(java -cp classes Program data 2>"$T/java.log")" "all well"
jar cfe program.jar Program -C classes . 2>/dev/null
rm -r data classes
equal "$(java -jar program.jar data 2>>"$T/java.log")" "all well"
