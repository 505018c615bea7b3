#!/usr/bin/env bash
# Runs the generic tests of xfstests that need only a mounted file system, on a mount.
#
#   scripts/xfstests.sh DIRECTORY [TEST...]     for example: scripts/xfstests.sh /opt/xfstests generic/001
#
# DIRECTORY has a built xfstests. FOREBAY_BIN names the program (default: the release build), EXCLUDE lists tests
# to leave out. Needs root and the package fuse3; the users that some tests need (fsgqa, fsgqa2, 123456-fsgqa) are
# not created: without them these tests are skipped. All mounts are in a mount namespace of its own, where a helper
# that replaces fuse's lets mount(8) mount the instance.
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
    # The command reports its errors itself; the directory must be removed in any case.
    "$forebay" stop --name "$name" >/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

# mount(8) runs this for the type fuse.forebay: SOURCE DIRECTORY, then options that the instance sets anyway.
helper=$(readlink -f /sbin/mount.fuse) && [ -f "$helper" ] || { echo "no /sbin/mount.fuse: install fuse3" >&2; exit 2; }
cat >"$place/helper" <<END
#!/bin/sh
for word; do case \$word in *remount*) exec mount -i -t fuse.forebay "\$@" ;; esac; done
exec "$forebay" mount --name "\${1#forebay:}" --for-all --trusted "\$2" >/dev/null
END
chmod 755 "$place/helper"
mount --bind "$place/helper" "$helper"

# xfstests expects the type `fuse` for all FUSE mounts.
printf '#!/bin/sh\ndf "$@" | sed "s/fuse\\.forebay/fuse/"\n' >"$place/df"
chmod 755 "$place/df"

mkdir "$place/mount" "$place/results"
cat >"$place/config" <<END
export TEST_DEV=forebay:$name TEST_DIR=$place/mount FSTYP=fuse FUSE_SUBTYP=.forebay RESULT_BASE=$place/results
export DF_PROG="$place/df -T -P -a"
END
"$forebay" start --name "$name" --local 2 --memory "${MEMORY:-3GiB}" --ssd 0

# Leaves out tests that need a second file system.
if [ $# -eq 0 ]; then
    mapfile -t tests < <(cd "$suite/tests" && grep -L -E '_scratch|SCRATCH_|_require_(block_device|dm_)' generic/[0-9][0-9][0-9])
else
    tests=("$@")
fi
for one in ${EXCLUDE:-}; do tests=("${tests[@]/#$one/}"); done
cd "$suite"
# The exit status is ignored, because failures are counted afterwards.
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
