// Common beginning of every C case: all headers, the directory under test, and two checks.
// CHECK counts a failure and continues, so that one run shows all of them; MUST ends the program.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;

#define REPORT(what) fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, what, errno, strerror(errno))
#define CHECK(condition) do { if (!(condition)) { REPORT(#condition); failures++; } } while (0)
#define MUST(condition) do { if (!(condition)) { REPORT(#condition); exit(1); } } while (0)
// The call must return -1 with this error.
#define FAILS(error, call) do { errno = 0; if ((call) != -1 || errno != (error)) { \
    fprintf(stderr, "%s:%d: %s: expected %s, errno is %d: %s\n", __FILE__, __LINE__, #call, #error, errno, strerror(errno)); failures++; } } while (0)

// Changes to the directory of the first argument, so that cases use short relative names.
static inline void enter(int count, char **arguments) {
    MUST(count > 1);
    MUST(chdir(arguments[1]) == 0);
}

static inline int finish(void) {
    if (failures) fprintf(stderr, "%d checks failed\n", failures);
    return failures != 0;
}

// Creates a file with this text and returns it open for reading and writing.
static inline int make(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0);
    MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

// True if the whole file has exactly this text.
static inline int holds(const char *name, const char *text) {
    static char buffer[65536];
    int fd = open(name, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t got = read(fd, buffer, sizeof buffer);
    close(fd);
    return got == (ssize_t)strlen(text) && memcmp(buffer, text, got) == 0;
}

static inline int exists(const char *name) {
    struct stat status;
    return lstat(name, &status) == 0;
}

static inline long size_of(const char *name) {
    struct stat status;
    return stat(name, &status) == 0 ? (long)status.st_size : -1;
}

// Runs the statements in a child and checks that it ended with 0.
#define CHILD(...) do { pid_t child_ = fork(); MUST(child_ >= 0); \
    if (child_ == 0) { failures = 0; __VA_ARGS__; _exit(failures != 0); } \
    int status_ = -1; MUST(waitpid(child_, &status_, 0) == child_); CHECK(status_ == 0); } while (0)
