// Calls on an open file that go to the kernel past whatever serves the file (system calls of this program's own):
// each does what it says, or fails; none finds an empty file or loses bytes in silence.
#include "check.h"
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static long raw(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **arguments) {
    enter(count, arguments);
    char text[16] = "";
    int file = make("f", "hello"), copy = dup(file), high = fcntl(file, F_DUPFD, 60);
    int files[] = {file, copy, high};
    for (int i = 0; i < 3; i++) {
        long got = raw(SYS_pread64, files[i], (long)text, sizeof text, 0);
        CHECK(got < 0 || (got == 5 && memcmp(text, "hello", 5) == 0));
        got = raw(SYS_read, files[i], (long)text, 1, 0);
        CHECK(got < 0 || (got == 1 && text[0] == "hel"[i]));
        void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, files[i], 0);
        CHECK(map != MAP_FAILED && memcmp(map, "hello", 5) == 0);
        munmap(map, 4096);
        got = raw(SYS_pwrite64, files[i], (long)"J", 1, 0);
        CHECK(got < 0 || (got == 1 && holds("f", "Jello")));
        if (got == 1) MUST(pwrite(file, "h", 1, 0) == 1);
        got = raw(SYS_ftruncate, files[i], 1, 0, 0);
        CHECK(got < 0 || size_of("f") == 1);
        if (got == 0) MUST(pwrite(file, "hello", 5, 0) == 5);
        int pipes[2];
        MUST(pipe(pipes) == 0);
        off_t offset = 0;
        got = raw(SYS_sendfile, pipes[1], files[i], (long)&offset, 5);
        CHECK(got < 0 || got == 5);
        close(pipes[0]);
        close(pipes[1]);
    }
    // By the names of its descriptor, also those that another process uses.
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    int again = raw(SYS_openat, AT_FDCWD, (long)name, O_RDONLY, 0);
    if (again >= 0) {
        char found[8];
        long got = raw(SYS_read, again, (long)found, sizeof found, 0);
        CHECK(got < 0 || (got == 5 && memcmp(found, "hello", 5) == 0));
        raw(SYS_close, again, 0, 0, 0);
    }
    // It is as ready as every regular file is.
    struct pollfd ready = {.fd = file, .events = POLLIN | POLLOUT};
    CHECK(poll(&ready, 1, 0) == 1 && ready.revents == (POLLIN | POLLOUT));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(file, &set);
    CHECK(select(file + 1, &set, NULL, NULL, &(struct timeval){0, 0}) == 1);
    int events = epoll_create1(0);
    // Files on a mount can be polled, as the kernel sees it.
    if (getenv("LD_PRELOAD")) FAILS(EPERM, epoll_ctl(events, EPOLL_CTL_ADD, file, &(struct epoll_event){.events = EPOLLIN}));
    CHECK(pread(file, text, 5, 0) == 5 && memcmp(text, "hello", 5) == 0 && size_of("f") == 5);
    return finish();
}
