#!/usr/bin/env bash
# A static busybox with only its own applets: a tree is created, packed, unpacked, searched, changed, removed.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need busybox
if ldd "$(command -v busybox)" >/dev/null 2>&1; then echo "not static: busybox"; exit 77; fi
make_tree "$T/from"
cp -a "$T/from" "$D/tree"
cd "$D"
busybox sh -e <<'END'
export PATH=/nowhere
busybox=/bin/busybox
[ -x $busybox ] || busybox=/usr/bin/busybox
for applet in cp mkdir tar gzip find sort sha256sum xargs sed grep awk mv rm ln dd touch chmod wc diff ls; do
    eval "$applet() { $busybox $applet \"\$@\"; }"
done
cp -a tree copy
tar -cf - copy | gzip >copy.tar.gz
mkdir unpacked && gzip -dc copy.tar.gz | tar -xf - -C unpacked
diff -r copy unpacked/copy
[ "$(find copy | wc -l)" = "$(find unpacked/copy | wc -l)" ]
find copy/many -name 'entry-1*' | xargs sed -i 's/entry/line/'
[ "$(grep -l line copy/many/* | wc -l)" = 111 ]
[ "$(awk '{ sum += $2 } END { print sum }' copy/many/*)" = 19900 ]
dd if=copy/a/file-300000 of=big bs=4k seek=1000 conv=notrunc 2>/dev/null
[ "$(wc -c <big)" = 4396000 ]
mv copy/many copy/lots && ln -s lots copy/many && ln big copy/big && chmod 400 big && touch -d '2001-02-03 04:05:06' big
rm -rf copy unpacked copy.tar.gz big
[ "$(ls)" = tree ]
END
equal "$(tree_of tree)" "$(tree_of "$T/from")" tree
