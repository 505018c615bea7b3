#!/usr/bin/env bash
# Programs with other preloaded libraries beside: allocators, stdbuf, fakeroot, faketime, eatmydata.
. "${BASH_SOURCE[0]%/*}/lib.sh"

bad=
for library in jemalloc.so.2 tcmalloc_minimal.so.4; do
    path=$(find /usr/lib -name "lib$library" 2>/dev/null | head -n 1)
    [ -n "$path" ] || continue
    for list in "$path${LD_PRELOAD:+:$LD_PRELOAD}" "${LD_PRELOAD:+$LD_PRELOAD:}$path" "$path"; do
        equal "$(LD_PRELOAD=$list sh -c 'echo a >"$0" && cat "$0"' "$D/$library")" a "$list"
    done
    LD_PRELOAD=$path python3 -c "import sys
open(sys.argv[1], 'w').write('x' * 100000)
assert len(open(sys.argv[1]).read()) == 100000" "$D/python" || bad+=" $library-python"
done
equal "$(stdbuf -oL sh -c 'echo b | tee "$0" >/dev/null; cat "$0"' "$D/stdbuf")" b stdbuf
if command -v fakeroot >/dev/null; then
    equal "$(fakeroot sh -c 'echo c >"$0" && chown 12:34 "$0" && stat -c %u:%g "$0" && cat "$0"' "$D/fakeroot" | tr '\n' ' ')" \
        "12:34 c " fakeroot
fi
if command -v faketime >/dev/null; then
    equal "$(faketime '2001-01-01 00:00:00' sh -c 'echo d >"$0" && date +%Y && cat "$0"' "$D/faketime" | tr '\n' ' ')" \
        "2001 d " faketime
fi
if command -v eatmydata >/dev/null; then
    eatmydata dd if=/dev/zero of="$D/eatmydata" bs=1k count=10 conv=fsync status=none
    equal "$(stat -c %s "$D/eatmydata")" 10240 eatmydata
fi
[ -z "$bad" ] || fail "$bad"
