#!/usr/bin/env bash
# poll and select see a file ready, epoll refuses it, inotify works or is refused, calls under a fast timer.
. "${BASH_SOURCE[0]%/*}/lib.sh"

compile posix_poll.c
"$T/program" "$D"
