#!/usr/bin/env bash
# fio filecreate, filestat and filedelete over a thousand files.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need fio
fio --output="$T/create.log" --name=m --ioengine=filecreate --directory="$D" --nrfiles=1000 --filesize=4k --openfiles=1 --fallocate=none --create_on_open=1
equal "$(find "$D" -type f | wc -l)" 1000
fio --output="$T/stat.log" --name=m --ioengine=filestat --directory="$D" --nrfiles=1000 --filesize=4k --fallocate=none
fio --output="$T/delete.log" --name=m --ioengine=filedelete --directory="$D" --nrfiles=1000 --filesize=4k --fallocate=none
equal "$(find "$D" -type f | wc -l)" 0
