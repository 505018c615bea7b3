#!/usr/bin/env bash
# go build: the toolchain is a static program.
# preload-only: refused: is statically linked
. "${BASH_SOURCE[0]%/*}/lib.sh"

need go
export GOCACHE=$T/cache GOPATH=$T/gopath GOFLAGS=-mod=mod GOTOOLCHAIN=local
cd "$D"
printf 'module example.org/hello\n\ngo 1.18\n' >go.mod
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := os.WriteFile("written", []byte("by go"), 0o644); err != nil {
		panic(err)
	}
	data, _ := os.ReadFile("written")
	fmt.Println(string(data))
}
END
go build -o program .
equal "$(./program)" "by go"
equal "$(cat written)" "by go"
