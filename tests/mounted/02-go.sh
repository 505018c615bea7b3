#!/usr/bin/env bash
# A static Go program: many goroutines create, map, rename, link, lock, list, copy and remove files.
. "${BASH_SOURCE[0]%/*}/../programs/lib.sh"

need go
export CGO_ENABLED=0 GOCACHE=$T/cache GOPATH=$T/gopath GOTOOLCHAIN=local GO111MODULE=off
go build -o "$D/program" "${BASH_SOURCE[0]%/*}/src/files.go"
if ldd "$D/program" >/dev/null 2>&1; then fail "the program is not static"; fi
mkdir "$D/work"
equal "$("$D/program" "$D/work")" "all well"
equal "$(ls -A "$D/work")" ""
