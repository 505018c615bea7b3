// A program with system calls of its own, in the program and in a library, beside those of the C library: both see
// the same files, whichever opened them. A ring of the kernel is refused, or it works.
#include "check.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>

static inline long raw(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int count, char **arguments) {
    enter(count, arguments);
    char text[16] = "";
    int file = make("f", "hello");
    CHECK(raw(SYS_pread64, file, (long)text, sizeof text, 0) == 5 && memcmp(text, "hello", 5) == 0);
    CHECK(raw(SYS_write, file, (long)"J", 1, 0) == 1 && holds("f", "Jello"));
    struct stat status;
    CHECK(raw(SYS_fstat, file, (long)&status, 0, 0) == 0 && status.st_size == 5);
    CHECK(raw(SYS_rename, (long)"f", (long)"g", 0, 0) == 0 && exists("g") && !exists("f"));
    int own = raw(SYS_openat, AT_FDCWD, (long)"h", O_CREAT | O_RDWR, 0644);
    CHECK(own >= 0 && exists("h") && write(own, "own", 3) == 3 && holds("h", "own"));
    int copy = raw(SYS_dup, own, 0, 0, 0);
    CHECK(raw(SYS_close, own, 0, 0, 0) == 0 && pread(copy, text, 3, 0) == 3);
    CHECK(raw(SYS_mkdir, (long)"d", 0755, 0, 0) == 0 && raw(SYS_chdir, (long)"d", 0, 0, 0) == 0);
    CHECK(exists("../g") && raw(SYS_chdir, (long)"..", 0, 0, 0) == 0 && exists("d"));
    FAILS(EBADF, pread(own, text, 1, 0));
    // A preloaded program gets no ring.
    if (getenv("LD_PRELOAD")) {
        struct io_uring_params parameters = {0};
        CHECK(raw(SYS_io_uring_setup, 4, (long)&parameters, 0, 0) == -ENOSYS);
        FAILS(ENOSYS, syscall(SYS_io_uring_setup, 4, &parameters));
    }
    return finish();
}
