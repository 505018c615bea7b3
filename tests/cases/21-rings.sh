#!/usr/bin/env bash
# io_uring by liburing, fio and node: it is refused, or it reads and writes the file; it never finds an empty one.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc
echo '#include <liburing.h>' >"$T/has.c"
gcc -fsyntax-only "$T/has.c" 2>/dev/null || { echo "not installed: liburing"; exit 77; }
compile_case rings.c -luring
"$T/program" "$D/file" || fail "liburing"
if command -v node >/dev/null; then
    UV_USE_IO_URING=1 node -e 'const fs = require("fs").promises, path = process.argv[1];
fs.writeFile(path, "x".repeat(100000)).then(() => fs.readFile(path)).then(all => process.exit(all.length == 100000 ? 0 : 1))' \
        "$D/node" || fail "node"
fi
if command -v fio >/dev/null; then
    fio --name=a --directory="$D" --ioengine=io_uring --rw=randrw --size=4m --bs=4k --verify=crc32c >"$T/fio" 2>&1 ||
        grep -qi "support io_uring\|not implemented\|not supported" "$T/fio" || fail "fio: $(head -n 5 "$T/fio")"
fi
