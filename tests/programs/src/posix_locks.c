// Three kinds of locks and the processes that they exclude.
#include "check.h"

static int lock(int fd, int command, int type, off_t start, off_t length) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, command, &l);
}

static void records(void) {
    int fd = make("f", "0123456789");
    CHECK(lock(fd, F_SETLK, F_WRLCK, 2, 4) == 0);
    CHILD({
        int own = open("f", O_RDWR);
        CHECK(lock(own, F_SETLK, F_WRLCK, 0, 2) == 0 && lock(own, F_SETLK, F_WRLCK, 6, 0) == 0);
        CHECK(lock(own, F_SETLK, F_RDLCK, 5, 1) == -1 && (errno == EAGAIN || errno == EACCES));
        struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0};
        CHECK(fcntl(own, F_GETLK, &l) == 0 && l.l_type == F_WRLCK && l.l_start == 2 && l.l_len == 4 && l.l_pid == getppid());
    });
    // A process never blocks itself, and closing any descriptor releases all of its locks.
    int other = open("f", O_RDWR);
    CHECK(lock(other, F_SETLK, F_WRLCK, 0, 0) == 0 && lock(other, F_SETLK, F_UNLCK, 3, 1) == 0);
    CHILD({ int own = open("f", O_RDWR); CHECK(lock(own, F_SETLK, F_WRLCK, 3, 1) == 0 && lock(own, F_SETLK, F_WRLCK, 4, 1) == -1); });
    close(other);
    CHILD({ int own = open("f", O_RDWR); CHECK(lock(own, F_SETLK, F_WRLCK, 0, 0) == 0); });
    // Shared locks coexist; a waiter gets the lock when it is free.
    CHECK(lock(fd, F_SETLK, F_RDLCK, 0, 0) == 0);
    CHILD({ int own = open("f", O_RDWR); CHECK(lock(own, F_SETLK, F_RDLCK, 0, 0) == 0 && lock(own, F_SETLK, F_WRLCK, 0, 0) == -1); });
    CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        int own = open("f", O_RDWR);
        _exit(lock(own, F_SETLKW, F_WRLCK, 0, 0) == 0 && pwrite(own, "W", 1, 0) == 1 ? 0 : 1);
    }
    usleep(100000);
    CHECK(holds("f", "0123456789"));
    CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && holds("f", "W123456789"));
    int reader = open("f", O_RDONLY);
    FAILS(EBADF, lock(reader, F_SETLK, F_WRLCK, 0, 1));
    CHECK(lockf(fd, F_TLOCK, 5) == 0 && lockf(fd, F_ULOCK, 5) == 0);
    close(reader), close(fd);
}

static void descriptions(void) {
    int one = make("o", "x"), two = open("o", O_RDWR);
    CHECK(lock(one, F_OFD_SETLK, F_WRLCK, 0, 0) == 0);
    FAILS(EAGAIN, lock(two, F_OFD_SETLK, F_WRLCK, 0, 0));
    int same = dup(one);
    CHECK(lock(same, F_OFD_SETLK, F_WRLCK, 0, 0) == 0);
    CHILD({ CHECK(lock(one, F_OFD_SETLK, F_WRLCK, 0, 0) == 0 && lock(two, F_OFD_SETLK, F_WRLCK, 0, 0) == -1); });
    close(one);
    FAILS(EAGAIN, lock(two, F_OFD_SETLK, F_WRLCK, 0, 0));
    close(same);
    CHECK(lock(two, F_OFD_SETLK, F_WRLCK, 0, 0) == 0);
    close(two);
}

static void whole_files(void) {
    int one = make("w", "x"), two = open("w", O_RDONLY);
    CHECK(flock(one, LOCK_EX) == 0);
    FAILS(EWOULDBLOCK, flock(two, LOCK_EX | LOCK_NB));
    FAILS(EWOULDBLOCK, flock(two, LOCK_SH | LOCK_NB));
    CHILD({ CHECK(flock(one, LOCK_EX | LOCK_NB) == 0 && flock(two, LOCK_SH | LOCK_NB) == -1); });
    FAILS(EWOULDBLOCK, flock(two, LOCK_SH | LOCK_NB));
    CHECK(flock(one, LOCK_SH) == 0 && flock(two, LOCK_SH) == 0 && flock(one, LOCK_UN) == 0 && flock(two, LOCK_EX | LOCK_NB) == 0);
    FAILS(EINVAL, flock(one, 77));
    close(two);
    CHECK(flock(one, LOCK_EX | LOCK_NB) == 0);
    close(one);
}

static void on_alarm(int number) { (void)number; }

// A wait for a lock ends with EINTR when a signal without SA_RESTART comes.
static void interrupted(void) {
    int fd = make("i", "x");
    CHECK(flock(fd, LOCK_EX) == 0);
    CHILD({
        struct sigaction action = {.sa_handler = on_alarm};
        sigaction(SIGALRM, &action, NULL);
        int own = open("i", O_RDWR);
        ualarm(100000, 100000);
        FAILS(EINTR, flock(own, LOCK_EX));
    });
    CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
    CHILD({
        struct sigaction action = {.sa_handler = on_alarm};
        sigaction(SIGALRM, &action, NULL);
        int own = open("i", O_RDWR);
        ualarm(100000, 100000);
        FAILS(EINTR, lock(own, F_SETLKW, F_WRLCK, 0, 0));
    });
    close(fd);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    records();
    descriptions();
    whole_files();
    // A memory checker does not keep the signals blocked that a handler blocks for the code that it interrupts.
    if (getenv("MEMORY_IS_WATCHED") == NULL) interrupted();
    return finish();
}
