#!/usr/bin/env bash
# Calls that a preloaded library may not see give the file's bytes or an error, never nothing as something.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need gcc
cd "$D"
cat >"$T/raw.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
static const char text[] = "the bytes of the file\n";
enum { LENGTH = sizeof text - 1 };
static int bad;
/* The text, or an error. */
static void expect(const char *what, long result, const char *got) {
    if (result < 0) return;
    if (result == LENGTH && memcmp(got, text, LENGTH) == 0) return;
    printf("%s gives %ld\n", what, result);
    bad = 1;
}
int main(int count, char **words) {
    int fd = count > 1 ? atoi(words[1]) : open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (count == 1 && write(fd, text, LENGTH) != LENGTH) return 2;
    char got[64] = "";
    expect("pread", raw(SYS_pread64, fd, (long)got, LENGTH, 0, 0, 0), got);
    struct iovec part = {got, LENGTH};
    memset(got, 0, sizeof got);
    expect("preadv", raw(SYS_preadv, fd, (long)&part, 1, 0, 0, 0), got);
    memset(got, 0, sizeof got);
    if (raw(SYS_lseek, fd, 0, SEEK_SET, 0, 0, 0) == 0) expect("read", raw(SYS_read, fd, (long)got, LENGTH, 0, 0, 0), got);
    int pipes[2];
    if (pipe(pipes) != 0) return 2;
    off_t at = 0;
    long sent = raw(SYS_sendfile, pipes[1], fd, (long)&at, LENGTH, 0, 0);
    if (sent > 0) sent = read(pipes[0], got, sizeof got);
    if (sent == 0) { printf("sendfile sends nothing\n"); bad = 1; }
    long mapped = raw(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped > 0 && memcmp((char *)mapped, text, LENGTH) != 0) { printf("mmap shows other bytes\n"); bad = 1; }
    /* What is ready does not change. */
    struct pollfd polled = {fd, POLLIN | POLLOUT, 0};
    if (poll(&polled, 1, 0) != 1 || polled.revents != (POLLIN | POLLOUT)) { printf("poll gives %d\n", polled.revents); bad = 1; }
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (select(fd + 1, &set, 0, 0, 0) != 1) { printf("select fails: %m\n"); bad = 1; }
    struct epoll_event event = {EPOLLIN, {0}};
    int epoll = epoll_create1(0);
    /* Files on a mount can be polled, as the kernel sees it. */
    if (getenv("LD_PRELOAD") && (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != -1 || errno != EPERM)) { printf("epoll takes it: %m\n"); bad = 1; }
    /* Nothing is written to another place and taken for done. */
    long put = raw(SYS_pwrite64, fd, (long)"T", 1, 0, 0, 0);
    char now = 0;
    if (pread(fd, &now, 1, 0) != 1 || now != (put == 1 ? 'T' : 't')) { printf("pwrite gives %ld, the byte is %c\n", put, now); bad = 1; }
    if (put == 1 && pwrite(fd, "t", 1, 0) != 1) return 2;
    return bad;
}
END
gcc -O1 -o "$T/raw" "$T/raw.c"
"$T/raw" || fail "a descriptor that the program opened"
# Inherited by exec, through a shell.
exec 7<>file
"$T/raw" 7 || fail "a descriptor that the program inherited"
