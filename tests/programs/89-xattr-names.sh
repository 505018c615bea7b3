#!/usr/bin/env bash
# Name spaces, flags, sizes and errors of extended attributes, and the loss of capabilities, compared with the local disk.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need python3
case $(stat -f -c %T "$T") in ext2/ext3 | xfs | btrfs) ;; *) echo "no local disk"; exit 77 ;; esac
same_as "$T" xattr.sh
