// Calls on every open descriptor that is not this program's: on the preload library's own, each call fails with EBADF,
// through the C library and by system calls of this program; files stay as they are.
#include "check.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static long raw_truncate(long fd) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_ftruncate), "D"(fd), "S"(0L) : "rcx", "r11", "memory");
    return result;
}

// The names of all open descriptors, without the one of the list itself.
static int list(int *numbers, int count_max) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    MUST(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int number = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && number != dirfd(directory) && count < count_max) numbers[count++] = number;
    }
    closedir(directory);
    return count;
}

static void stray(int fd, int file, int events) {
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct stat status;
    off_t zero = 0;
    FAILS(EBADF, ftruncate(fd, 0));
    CHECK(raw_truncate(fd) == -EBADF);
    FAILS(EBADF, pwrite(fd, &byte, 1, 0));
    FAILS(EBADF, write(fd, &byte, 1));
    FAILS(EBADF, writev(fd, &part, 1));
    FAILS(EBADF, pwritev(fd, &part, 1, 0));
    FAILS(EBADF, pread(fd, &byte, 1, 0));
    FAILS(EBADF, read(fd, &byte, 1));
    FAILS(EBADF, lseek(fd, 0, SEEK_SET));
    FAILS(EBADF, fstat(fd, &status));
    FAILS(EBADF, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    FAILS(EBADF, fsync(fd));
    FAILS(EBADF, fchmod(fd, 0));
    FAILS(EBADF, fchown(fd, -1, -1));
    FAILS(EBADF, flock(fd, LOCK_EX | LOCK_NB));
    FAILS(EBADF, sendfile(fd, file, &zero, 1));
    FAILS(EBADF, copy_file_range(file, &zero, fd, NULL, 1, 0));
    FAILS(EBADF, ioctl(fd, FIONREAD, &zero));
    FAILS(EBADF, epoll_ctl(events, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
    FAILS(EBADF, dup(fd));
    FAILS(EBADF, fcntl(fd, F_GETFL));
    FAILS(EBADF, dup2(file, fd));
    FAILS(EBADF, close(fd));
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBADF);
}

int main(int count, char **arguments) {
    int numbers[256];
    enter(count, arguments);
    int file = make("stray", "text"), events = epoll_create1(0);
    int number = list(numbers, 256), strays = 0;
    for (int i = 0; i < number; i++) {
        // One that is open for the kernel, but not for this program.
        if (fcntl(numbers[i], F_GETFD) >= 0) continue;
        strays++;
        stray(numbers[i], file, events);
    }
    // Preloaded, the library has the instance's memory, its SSD file and a socket at least.
    CHECK(strays >= (getenv("LD_PRELOAD") ? 3 : 0));
    CHECK(holds("stray", "text"));
    CHECK(pwrite(file, "next", 4, 0) == 4 && holds("stray", "next"));
    return finish();
}
