#!/usr/bin/env bash
# setfacl, getfacl, chmod, cp -a and default lists with access control lists, compared with tmpfs.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need getfacl setfacl python3
same_as /dev/shm acl.sh
