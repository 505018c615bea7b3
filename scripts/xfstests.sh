#!/usr/bin/env bash
# Runs generic tests of xfstests on a mount: those that need nothing but a mounted file system.
#
#   scripts/xfstests.sh DIRECTORY [TEST...]     for instance: scripts/xfstests.sh /opt/xfstests generic/001
#
# DIRECTORY is where xfstests was built. FOREBAY_BIN names the program (default: the release build), EXCLUDE
# holds tests to leave out. Needs root and the package fuse3; the users that some tests want (fsgqa, fsgqa2,
# 123456-fsgqa) are not made, without them these tests are not run. All that it mounts is in a mount namespace of
# its own, where mount(8) finds the instance by a helper in place of fuse's.
set -euo pipefail

here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
[ $# -ge 1 ] && [ -x "$1/check" ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
suite=$(cd "$1" && pwd)
shift
if [ -z "${XFSTESTS_APART:-}" ]; then
    exec env XFSTESTS_APART=1 unshare -m "$0" "$suite" "$@"
fi
forebay=$(readlink -f "${FOREBAY_BIN:-${CARGO_TARGET_DIR:-$here/../target}/release/forebay}")
name=xfstests-$$
place=$(mktemp -d /var/tmp/forebay-xfstests-XXXXXX)
chmod 755 "$place"
finish() {
    # It says itself what was wrong; the directory has to go in any case.
    "$forebay" stop --name "$name" >/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

# What mount(8) runs for the type fuse.forebay: SOURCE DIRECTORY, then options that the instance has by itself.
helper=$(readlink -f /sbin/mount.fuse) && [ -f "$helper" ] || { echo "no /sbin/mount.fuse: install fuse3" >&2; exit 2; }
cat >"$place/helper" <<END
#!/bin/sh
for word; do case \$word in *remount*) exec mount -i -t fuse.forebay "\$@" ;; esac; done
exec "$forebay" mount --name "\${1#forebay:}" --for-all --trusted "\$2" >/dev/null
END
chmod 755 "$place/helper"
mount --bind "$place/helper" "$helper"

# It knows the type of all mounts by FUSE as fuse.
printf '#!/bin/sh\ndf "$@" | sed "s/fuse\\.forebay/fuse/"\n' >"$place/df"
chmod 755 "$place/df"

mkdir "$place/mount" "$place/results"
cat >"$place/config" <<END
export TEST_DEV=forebay:$name TEST_DIR=$place/mount FSTYP=fuse FUSE_SUBTYP=.forebay RESULT_BASE=$place/results
export DF_PROG="$place/df -T -P -a"
END
"$forebay" start --name "$name" --local 2 --memory "${MEMORY:-3GiB}" --ssd 0

# Tests that ask for a second file system are left out before they say so themselves.
if [ $# -eq 0 ]; then
    mapfile -t tests < <(cd "$suite/tests" && grep -L -E '_scratch|SCRATCH_|_require_(block_device|dm_)' generic/[0-9][0-9][0-9])
else
    tests=("$@")
fi
for one in ${EXCLUDE:-}; do tests=("${tests[@]/#$one/}"); done
cd "$suite"
# It fails if any test does; what failed is counted below.
HOST_OPTIONS=$place/config ./check ${tests[@]:+"${tests[@]}"} | tee "$place/log" || true
failed=$(sed -n 's/^Failures: //p' "$place/log")
ran=$(sed -n 's/^Ran: //p' "$place/log" | wc -w)
skipped=$(sed -n 's/^Not run: //p' "$place/log" | wc -w)
failures=$(wc -w <<<"$failed")
for one in $failed; do
    bad=$(find "$place/results" -path "*/$one.out.bad" | head -n 1)
    # `diff` fails where it finds a difference.
    [ -z "$bad" ] || { echo "== $one"; diff "tests/$one.out" "$bad" | head -n 40 || true; }
done
echo "$((ran - skipped - failures)) passed, $failures failed, $skipped skipped"
[ "$failures" -eq 0 ] && [ "$ran" -gt 0 ]
