// What a program may expect of file calls as a guest on its stacks and among its signals. Arguments: the part, an
// empty directory.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static char directory[300];
static char block[1 << 20];
static int full[2];

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            int error = errno;                                                                    \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(error));          \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

static const char *at(const char *name) {
    static __thread char paths[4][400];
    static __thread int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void every_micros(long micros) {
    struct itimerval often = {{0, micros}, {0, micros}};
    CHECK(!setitimer(ITIMER_REAL, &often, 0));
}

// Once: a handler that takes longer than the time between two signals would leave no time for the rest.
static void after_micros(long micros) {
    struct itimerval once = {{0, 0}, {0, micros}};
    CHECK(!setitimer(ITIMER_REAL, &once, 0));
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(!sigaction(signal, &action, 0));
}

static char *guarded(size_t bytes) {
    char *memory = mmap(0, bytes + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && !mprotect(memory + 4096, bytes, PROT_READ | PROT_WRITE));
    return memory + 4096;
}

static ucontext_t main_context, coroutine;
static void run_on(size_t bytes, void (*function)(void)) {
    CHECK(!getcontext(&coroutine));
    coroutine.uc_stack.ss_sp = guarded(bytes);
    coroutine.uc_stack.ss_size = bytes;
    coroutine.uc_link = &main_context;
    makecontext(&coroutine, function, 0);
    CHECK(!swapcontext(&main_context, &coroutine));
}

// ---- depth: how far below the caller a call reaches ----

enum { PAINTED = 128 << 10, MOST = 2048 + 512 /* of libc and of the call's arguments here */ };

#define DEPTH(call)                                                                               \
    do {                                                                                          \
        char *stack;                                                                              \
        asm volatile("mov %%rsp, %0" : "=r"(stack));                                              \
        for (volatile char *byte = stack - PAINTED; byte < stack; byte++) *byte = 0x5a;           \
        long result = (long)(call);                                                               \
        long used = PAINTED;                                                                      \
        while (used > 0 && *(volatile char *)(stack - used) == 0x5a) used--;                      \
        if (used > MOST || result < 0) {                                                          \
            fprintf(stderr, "%s: %ld bytes of stack, result %ld\n", #call, used, result);         \
            bad = 1;                                                                              \
        }                                                                                         \
    } while (0)

static int bad;
static void measure(void) {
    int file, local;
    struct stat attributes;
    char text[4096];
    struct iovec parts[2] = {{block, 100}, {block + 100, 100}};
    const char *one = at("one"), *two = at("two"), *three = at("three");
    for (int round = 0; round < 2; round++) {
        DEPTH(file = open(one, O_RDWR | O_CREAT, 0644));
        DEPTH(write(file, "0123456789", 10));
        DEPTH(write(file, block, sizeof block));
        DEPTH(pwritev(file, parts, 2, 5));
        DEPTH(pread(file, block, sizeof block, 0));
        DEPTH(fstat(file, &attributes));
        DEPTH(fsync(file));
        DEPTH(ftruncate(file, 5));
        DEPTH(lseek(file, 0, SEEK_SET));
        DEPTH(close(file));
        DEPTH(stat(one, &attributes));
        DEPTH(chmod(one, 0600));
        DEPTH(link(one, two));
        DEPTH(rename(one, three));
        DEPTH(symlink("three", one));
        DEPTH(readlink(one, text, sizeof text));
        DEPTH(unlink(one));
        DEPTH(unlink(two));
        DEPTH(unlink(three));
        DEPTH(mkdir(one, 0755));
        DEPTH(file = open(one, O_RDONLY | O_DIRECTORY));
        DEPTH(syscall(SYS_getdents64, file, text, sizeof text));
        DEPTH(close(file));
        DEPTH(rmdir(one));
        DEPTH(local = open("/etc/passwd", O_RDONLY));
        DEPTH(read(local, text, 10));
        DEPTH(close(local));
        DEPTH(stat("/etc/passwd", &attributes));
    }
}

static int depth(void) {
    run_on(1 << 20, measure);
    return bad;
}

// ---- small: threads, coroutines and handlers with little stack ----

static void work(const char *name) {
    char copy[16];
    struct stat attributes;
    int file = openat(AT_FDCWD, at(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0 && write(file, "0123456789", 10) == 10);
    CHECK(pread(file, copy, sizeof copy, 0) == 10 && !fstat(file, &attributes));
    CHECK(attributes.st_size == 10 && !ftruncate(file, 4) && !close(file));
    CHECK(!stat(at(name), &attributes) && attributes.st_size == 4 && !unlink(at(name)));
}

static void *work_in_thread(void *name) {
    work(name);
    return 0;
}

static void work_in_coroutine(void) { work("coroutine"); }
static void work_in_handler(int number) { work("handler"); }

static int small(void) {
    pthread_t threads[20];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(!pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    for (int round = 0; round < 10; round++) {
        for (long i = 0; i < 20; i++) {
            static char names[20][16];
            snprintf(names[i], sizeof names[i], "thread-%ld", i);
            CHECK(!pthread_create(&threads[i], &attributes, work_in_thread, names[i]));
        }
        for (int i = 0; i < 20; i++) pthread_join(threads[i], 0);
    }
    for (size_t bytes = 8192; bytes <= 65536; bytes *= 2) run_on(bytes, work_in_coroutine);
    stack_t alternate = {.ss_sp = guarded(8192), .ss_size = 8192};
    CHECK(!sigaltstack(&alternate, 0));
    handle(SIGUSR1, work_in_handler, SA_ONSTACK);
    for (int i = 0; i < 50; i++) raise(SIGUSR1);
    return 0;
}

// ---- alternate: a handler at work on its stack is not overwritten by the next one ----

static volatile int ticks;
static void tick(int number) {
    int error = errno, file = open(at("tick"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (file >= 0) {
        if (write(file, "t", 1) == 1) ticks++;
        close(file);
    }
    errno = error;
}

static void long_handler(int number) {
    volatile unsigned char canary[512];
    for (int i = 0; i < 512; i++) canary[i] = i;
    int file = open(at("long"), O_RDWR | O_CREAT, 0644);
    int before = ticks;
    for (int i = 0; i < 20000 && (i < 500 || ticks < before + 30); i++) {
        after_micros(1 + i % 200);
        CHECK(pwrite(file, block, 20000, 0) == 20000);
        for (int k = 0; k < 512; k++) CHECK(canary[k] == (unsigned char)k);
    }
    close(file);
}

static int alternate(void) {
    stack_t stack = {.ss_sp = guarded(32768), .ss_size = 32768};
    CHECK(!sigaltstack(&stack, 0));
    handle(SIGUSR1, long_handler, SA_ONSTACK);
    handle(SIGALRM, tick, SA_ONSTACK | SA_RESTART);
    raise(SIGUSR1);
    // And where the call that was interrupted is in progress itself.
    int file = open(at("plain"), O_RDWR | O_CREAT, 0644);
    for (int i = 0; i < 300; i++) {
        after_micros(1 + i % 200);
        CHECK(pwrite(file, block, 100000, 0) == 100000);
    }
    after_micros(0);
    return ticks == 0;
}

// ---- handlers: they run on the stack of the thread that they interrupt, as collectors of garbage require ----

static __thread uintptr_t stack_start, stack_end;
static volatile int elsewhere, seen;
static void look(int number, siginfo_t *information, void *context) {
    char here;
    ucontext_t *interrupted = context;
    uintptr_t was = interrupted->uc_mcontext.gregs[REG_RSP];
    seen++;
    elsewhere += (uintptr_t)&here < stack_start || (uintptr_t)&here >= stack_end;
    elsewhere += was < stack_start || was >= stack_end;
}

static void *be_looked_at(void *name) {
    pthread_attr_t attributes;
    void *start;
    size_t bytes;
    CHECK(!pthread_getattr_np(pthread_self(), &attributes));
    CHECK(!pthread_attr_getstack(&attributes, &start, &bytes));
    stack_start = (uintptr_t)start;
    stack_end = stack_start + bytes;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    int before = seen;
    for (int i = 0; i < 100000 && (i < 300 || seen < before + 100); i++) {
        int file = open(at(name), O_RDWR | O_CREAT, 0644);
        CHECK(file >= 0 && write(file, block, 200000) == 200000 && !close(file) && !unlink(at(name)));
    }
    return 0;
}

static int handlers(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(!sigaction(SIGALRM, &action, 0));
    every_micros(200);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, be_looked_at, i ? "a" : "b");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    every_micros(0);
    if (elsewhere) fprintf(stderr, "%d of %d on another stack\n", elsewhere, seen);
    return elsewhere != 0 || seen == 0;
}

// ---- actions: what a program sets is what it reads back, and how it takes effect ----

static volatile int calls, nested, code;
static void count(int number) { calls++; }
static void count_nested(int number) {
    if (++calls < 3) raise(number);
    nested += calls == 3;
}
static void note_code(int number, siginfo_t *information, void *context) {
    code = information->si_code == SI_QUEUE ? information->si_value.sival_int : -1;
}
static void blocks_other(int number) {
    raise(SIGUSR2);
    nested = calls;
}

static int actions(void) {
    struct sigaction old;
    CHECK(!sigaction(SIGUSR1, 0, &old) && old.sa_handler == SIG_DFL);
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(!sigaction(SIGUSR1, &action, 0) && !sigaction(SIGUSR1, 0, &old));
    CHECK(old.sa_handler == count && (old.sa_flags & ~0x4000000) == (int)(SA_RESTART | SA_RESETHAND));
    CHECK(sigismember(&old.sa_mask, SIGUSR2) == 1 && sigismember(&old.sa_mask, SIGHUP) == 0);
    raise(SIGUSR1);
    CHECK(calls == 1 && !sigaction(SIGUSR1, 0, &old) && old.sa_handler == SIG_DFL);
    CHECK(signal(SIGUSR1, count) == SIG_DFL && signal(SIGUSR1, SIG_IGN) == count);
    CHECK(raise(SIGUSR1) == 0 && calls == 1 && signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    calls = 0;
    handle(SIGUSR1, count_nested, SA_NODEFER);
    raise(SIGUSR1);
    CHECK(calls == 3 && nested == 3);
    struct sigaction queued = {.sa_sigaction = note_code, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGRTMIN + 1, &queued, 0));
    CHECK(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 77}) && code == 77);
    // With the other one blocked meanwhile.
    calls = nested = 0;
    handle(SIGUSR2, count, 0);
    struct sigaction blocking = {.sa_handler = blocks_other};
    sigaddset(&blocking.sa_mask, SIGUSR2);
    CHECK(!sigaction(SIGUSR1, &blocking, 0));
    raise(SIGUSR1);
    CHECK(nested == 0 && calls == 1);
    // A child of vfork has its own.
    pid_t child = vfork();
    if (!child) {
        signal(SIGUSR2, SIG_DFL);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    raise(SIGUSR2);
    CHECK(calls == 2);
    CHECK(sigaction(SIGKILL, &blocking, 0) == -1 && errno == EINVAL);
    CHECK(sigaction(65, 0, &old) == -1 && errno == EINVAL);
    return 0;
}

// ---- jumps: out of calls, very often ----

static sigjmp_buf back;
static volatile int may_jump, jumped;
static void jump(int number) {
    if (may_jump) {
        jumped++;
        siglongjmp(back, 1);
    }
}

static int jumps(void) {
    handle(SIGALRM, jump, 0);
    every_micros(500);
    volatile long rounds = 0;
    int flags = O_RDWR | O_CREAT;
    while (jumped < 1500 && rounds < 2000000) {
        if (!sigsetjmp(back, 1)) {
            may_jump = 1;
            for (;; rounds++) {
                int file = open(at("jumped"), flags, 0644);
                CHECK(file >= 0);
                CHECK(pwrite(file, block, 70000, 0) == 70000);
                CHECK(pread(file, block, 70000, 0) == 70000);
                close(file);
                unlink(at("jumped"));
            }
        }
        may_jump = 0;
        for (int i = 3; i < 20; i++) close(i);
    }
    every_micros(0);
    work("after");
    return 0;
}

// ---- order: what a jump interrupts is over before the next call ----

static int order(void) {
    handle(SIGALRM, jump, 0);
    every_micros(300);
    for (volatile int i = 0; i < 400; i++) {
        if (!sigsetjmp(back, 1)) {
            may_jump = 1;
            for (int k = 0; k < 50; k++) {
                unlink(at("order"));
                rename(at("order"), at("other"));
            }
        }
        may_jump = 0;
        int file = open(at("order"), O_RDWR | O_CREAT, 0644);
        CHECK(file >= 0 && write(file, "x", 1) == 1 && !close(file));
        struct stat attributes;
        CHECK(!stat(at("order"), &attributes) && attributes.st_size >= 1);
    }
    every_micros(0);
    return 0;
}

// ---- faults: a bad buffer, and a handler that jumps ----

static void jump_away(int number) { siglongjmp(back, 1); }

static int faults(void) {
    char *bad = mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *half = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!mprotect(half + 8192, (1 << 20) - 8192, PROT_NONE));
    handle(SIGSEGV, jump_away, 0);
    int file = open(at("fault"), O_RDWR | O_CREAT, 0644);
    for (volatile int i = 0; i < 300; i++) {
        if (!sigsetjmp(back, 1)) {
            ssize_t count = i % 3 == 0   ? pwrite(file, bad, 5000, 0)
                            : i % 3 == 1 ? pwrite(file, half, 100000, 4096)
                                         : pread(file, bad, 5000, 0);
            CHECK(count <= 8192);
        }
    }
    // The offset is free for another process, though the handler left a call that moves it.
    if (!sigsetjmp(back, 1)) CHECK(write(file, bad, 5000) <= 0);
    CHECK(lseek(file, 0, SEEK_CUR) == 0);
    pid_t child = fork();
    int status;
    if (!child) _exit(write(file, block, 10) != 10);
    CHECK(waitpid(child, &status, 0) == child && status == 0 && lseek(file, 0, SEEK_CUR) == 10);
    memset(block, 7, 200000);
    CHECK(pwrite(file, block, 200000, 0) == 200000);
    memset(block, 0, 200000);
    CHECK(pread(file, block, 200000, 0) == 200000 && block[4500] == 7 && block[199999] == 7);
    CHECK(!close(file));
    work("after");
    return 0;
}

// ---- locks: handlers run while a call waits for a lock; the wait goes on, ends, or is cancelled ----

static struct flock whole = {.l_type = F_WRLCK};

static void *wait_for_lock(void *result) {
    int file = open(at("lock"), O_RDWR);
    *(volatile int *)result = fcntl(file, F_SETLKW, &whole) ? errno : 0;
    return result;
}

static int locks(void) {
    int file = open(at("lock"), O_RDWR | O_CREAT, 0644), pipes[2], status;
    char byte;
    CHECK(file >= 0 && !pipe(pipes));
    pid_t holder = fork();
    if (!holder) {
        CHECK(!fcntl(file, F_SETLKW, &whole) && write(pipes[1], "l", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(pipes[0], &byte, 1) == 1);
    handle(SIGUSR1, count, SA_RESTART);
    handle(SIGUSR2, count, 0);
    pthread_t thread;
    volatile int result = -1;
    void *end;
    CHECK(!pthread_create(&thread, 0, wait_for_lock, (void *)&result));
    usleep(100000);
    for (int i = 0; i < 5; i++) {
        int before = calls;
        pthread_kill(thread, SIGUSR1);
        while (calls == before) usleep(1000);
    }
    CHECK(result == -1);
    // Sent again: the thread may not have begun to wait.
    for (calls = 0; result == -1; usleep(1000)) pthread_kill(thread, SIGUSR2);
    CHECK(!pthread_join(thread, 0) && result == EINTR && calls > 0);
    result = -1;
    CHECK(!pthread_create(&thread, 0, wait_for_lock, (void *)&result));
    usleep(100000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &end) && end == PTHREAD_CANCELED);
    CHECK(!kill(holder, SIGKILL) && waitpid(holder, &status, 0) == holder);
    CHECK(!fcntl(file, F_SETLKW, &whole));
    return 0;
}

// ---- pipes: an open that waits for the other end is handled, jumped out of, and cancelled ----

static void *open_pipe(void *name) { return (void *)(long)open(at(name), O_RDONLY); }

static int pipes(void) {
    CHECK(!mkfifo(at("pipe"), 0600));
    pthread_t thread;
    void *end;
    CHECK(!pthread_create(&thread, 0, open_pipe, "pipe"));
    usleep(50000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &end) && end == PTHREAD_CANCELED);
    // Restarted: the handler runs, and the open goes on.
    handle(SIGUSR1, count, SA_RESTART);
    calls = 0;
    CHECK(!pthread_create(&thread, 0, open_pipe, "pipe"));
    while (calls < 3) {
        pthread_kill(thread, SIGUSR1);
        usleep(10000);
    }
    int file = open(at("pipe"), O_WRONLY);
    CHECK(file >= 0 && !pthread_join(thread, &end) && (long)end >= 0 && !close((long)end) && !close(file));
    handle(SIGALRM, jump, 0);
    for (volatile int i = 0; i < 100; i++) {
        if (!sigsetjmp(back, 1)) {
            may_jump = 1;
            struct itimerval once = {{0, 500}, {0, 1000}};
            setitimer(ITIMER_REAL, &once, 0);
            CHECK(open(at("pipe"), O_RDONLY) < 0 && errno == EINTR);
        }
        may_jump = 0;
    }
    every_micros(0);
    work("after");
    return 0;
}

// ---- early: a signal that arrives while a call is about to wait ends the wait, or is handled before it ----

static volatile int handled, over;
static pthread_t waiter;
static void note(int number) { handled = 1; }

// Once the handler has run, interrupts until the call is over: it may have run before the call began.
static void *interrupt(void *unused) {
    while (!handled) usleep(50);
    while (!over) {
        pthread_kill(waiter, SIGALRM);
        usleep(50);
    }
    return 0;
}

static long wait_for_pipe(int file) { return open(at("pipe"), O_RDONLY); }
static long wait_for_record(int file) { return fcntl(file, F_SETLKW, &whole); }
static long wait_for_flock(int file) { return flock(file, LOCK_EX); }
static long wait_to_send(int file) {
    off_t start = 0;
    return sendfile(full[1], file, &start, 4096);
}

static void interrupted(long (*wait)(int), int file, int rounds) {
    for (int i = 0; i < rounds; i++) {
        pthread_t helper;
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        handled = over = 0;
        pthread_sigmask(SIG_BLOCK, &set, 0);
        CHECK(!pthread_create(&helper, 0, interrupt, 0));
        pthread_sigmask(SIG_UNBLOCK, &set, 0);
        after_micros(1 + i * 7 % 150);
        CHECK(wait(file) < 0 && errno == EINTR);
        over = 1;
        CHECK(!pthread_join(helper, 0));
    }
}

static volatile int waited, locked;
static void wait_in_handler(int number) {
    volatile unsigned char canary[512];
    for (int i = 0; i < 512; i++) canary[i] = i;
    interrupted(wait_for_pipe, locked, 50);
    interrupted(wait_for_record, locked, 50);
    for (int i = 0; i < 512; i++) CHECK(canary[i] == (unsigned char)i);
    waited++;
}

static int early(void) {
    int pipes[2], status, file = open(at("lock"), O_RDWR | O_CREAT, 0644);
    char byte;
    CHECK(file >= 0 && write(file, block, 4096) == 4096 && !pipe(pipes) && !pipe(full));
    CHECK(!mkfifo(at("pipe"), 0600) && !fcntl(full[1], F_SETFL, O_NONBLOCK));
    while (write(full[1], block, 4096) > 0) {}
    CHECK(errno == EAGAIN && !fcntl(full[1], F_SETFL, 0));
    pid_t holder = fork();
    if (!holder) {
        int own = open(at("lock"), O_RDWR);
        CHECK(!fcntl(own, F_SETLKW, &whole) && !flock(own, LOCK_EX) && write(pipes[1], "l", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(pipes[0], &byte, 1) == 1);
    waiter = pthread_self();
    handle(SIGALRM, note, 0);
    interrupted(wait_for_pipe, file, 150);
    interrupted(wait_for_record, file, 150);
    interrupted(wait_for_flock, file, 150);
    interrupted(wait_to_send, file, 150);
    // In a handler on an alternate stack, whose frames the other one, which may run there, too, leaves alone.
    stack_t stack = {.ss_sp = guarded(65536), .ss_size = 65536};
    CHECK(!sigaltstack(&stack, 0));
    handle(SIGALRM, note, SA_ONSTACK);
    handle(SIGUSR1, wait_in_handler, SA_ONSTACK);
    locked = file;
    CHECK(!raise(SIGUSR1) && waited == 1 && !sigaltstack(0, &stack) && stack.ss_size == 65536);
    CHECK(!kill(holder, SIGKILL) && waitpid(holder, &status, 0) == holder);
    return 0;
}

// ---- exec: a signal that arrives in an exec leaves none blocked in the program ----

static int exec_part(void) {
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (!child) {
            // Ignored by the program, which has no handler.
            handle(SIGURG, count, 0);
            struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG};
            struct itimerspec once = {{0, 0}, {0, 1000 * (1 + i * 7 % 300)}};
            timer_t timer;
            CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &once, 0));
            execl("/proc/self/exe", "guest", "exec-mask", directory, (char *)0);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    return 0;
}

static int exec_mask(void) {
    sigset_t set;
    CHECK(!sigprocmask(SIG_BLOCK, 0, &set));
    for (int number = 1; number < NSIG; number++) CHECK(sigismember(&set, number) != 1);
    return 0;
}

// ---- steps: a signal at each instruction of a call, whose handler makes calls beside those of a thread ----

enum { EDGE = 90, TRAP = 0x100 };
static volatile long step, steps, sent;
static volatile int stepping, go, entered, over_there, stepped;
static volatile pid_t other;

// One whose number leaves the same remainder meets the calls of this thread.
static void *wait_beside(void *unused) {
    pid_t own = gettid();
    if (own % 128 != getpid() % 128 || other) return 0;
    for (other = own; !over_there; sched_yield()) {
        if (!go) continue;
        go = 0;
        entered = 1;
        int file = open(at("beside"), O_RDONLY);
        CHECK(file >= 0 && !close(file));
        entered = 0;
    }
    return 0;
}

static char state_of(pid_t thread) {
    char path[64], text[256] = "", *end;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && !close(file));
    return (end = strrchr(text, ')')) ? end[2] : 0;
}

static void let_it_wait(int number) {
    struct stat attributes;
    CHECK(!fstat(stepped, &attributes));
    sent++;
    go = 1;
    while (!entered || state_of(other) != 'S') sched_yield();
}

static void trap(int number, siginfo_t *information, void *context) {
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];
    if (stepping && ++step == steps) {
        stepping = 0;
        raise(SIGUSR1);
    }
    *flags = stepping ? *flags | TRAP : *flags & ~TRAP;
}

static long in_steps(long at_step) {
    step = 0;
    steps = at_step;
    stepping = 1;
    raise(SIGTRAP);
    off_t offset = lseek(stepped, 0, SEEK_CUR);
    stepping = 0;
    CHECK(offset == 10);
    return step;
}

static int steps_part(void) {
    pthread_t thread = 0;
    stepped = open(at("file"), O_RDWR | O_CREAT, 0644);
    CHECK(stepped >= 0 && write(stepped, "0123456789", 10) == 10 && !mkfifo(at("beside"), 0600));
    while (!other) {
        CHECK(!pthread_create(&thread, 0, wait_beside, 0));
        while (!other && pthread_tryjoin_np(thread, 0)) sched_yield();
    }
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR1);
    CHECK(!sigaction(SIGTRAP, &action, 0));
    handle(SIGUSR1, let_it_wait, 0);
    // Some calls take more steps than others: those whose time is measured, one of many.
    long count = in_steps(0), missed = 0;
    for (int round = 0; round < 3; round++) {
        long taken = in_steps(0);
        if (taken < count) count = taken;
    }
    for (long i = 1; i < count; i++) {
        if (i == EDGE && count > 2 * EDGE) i = count - EDGE;
        long before = sent, taken = in_steps(i);
        if (taken < i && count - i < EDGE && ++missed < EDGE / 2) continue;
        CHECK(sent == before + 1);
        int file = open(at("beside"), O_WRONLY);
        CHECK(file >= 0);
        while (entered) sched_yield();
        close(file);
    }
    over_there = 1;
    CHECK(!pthread_join(thread, 0));
    return 0;
}

// ---- cancel: threads at work, at any instruction ----

static volatile int cleaned, started;
static void clean(void *file) {
    cleaned++;
    close(*(int *)file);
}

static void *endless(void *name) {
    static char bytes[300000];
    volatile int file = open(at(name), O_RDWR | O_CREAT, 0644);
    pthread_cleanup_push(clean, (void *)&file);
    for (;; started = 1) {
        pwrite(file, bytes, sizeof bytes, 0);
        pread(file, bytes, 100, 0);
        close(open(at("beside"), O_RDWR | O_CREAT, 0644));
    }
    pthread_cleanup_pop(1);
    return 0;
}

// In calls that take next to no time, where most instructions are those around the call.
static void *endless_reading(void *name) {
    char byte;
    int null = open("/dev/null", O_RDONLY), file = open(at(name), O_RDWR | O_CREAT, 0644);
    for (;; started = 1) {
        read(null, &byte, 1);
        read(file, &byte, 0);
    }
    return 0;
}

static int cancel(void) {
    for (int i = 0; i < 500; i++) {
        pthread_t thread;
        void *end;
        started = 0;
        CHECK(!pthread_create(&thread, 0, endless_reading, "read"));
        while (!started) sched_yield();
        for (volatile int k = 0; k < i; k++) {}
        CHECK(!pthread_cancel(thread) && !pthread_join(thread, &end) && end == PTHREAD_CANCELED);
        close(3), close(4);
    }
    for (int i = 0; i < 150; i++) {
        pthread_t thread;
        void *end;
        int before = cleaned;
        started = 0;
        CHECK(!pthread_create(&thread, 0, endless, "cancelled"));
        while (!started) usleep(100);
        usleep(i * 7);
        CHECK(!pthread_cancel(thread) && !pthread_join(thread, &end) && end == PTHREAD_CANCELED);
        CHECK(cleaned == before + 1);
    }
    work("after");
    return 0;
}

// ---- fork: in a handler that interrupted calls, and beside threads in calls ----

static volatile int forks, stop;
static void fork_here(int number) {
    int error = errno, status;
    pid_t child = fork();
    if (!child) {
        work("child");
        _exit(7);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    forks++;
    errno = error;
}

static void *busy(void *name) {
    while (!stop) {
        int file = open(at(name), O_RDWR | O_CREAT, 0644);
        CHECK(file >= 0 && write(file, block, 50000) == 50000 && !close(file));
    }
    return 0;
}

static int fork_part(void) {
    handle(SIGUSR1, fork_here, SA_RESTART);
    pthread_t threads[3];
    const char *names[] = {"one", "two", "three"};
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, busy, (void *)names[i]);
    for (int i = 0; i < 40; i++) {
        pthread_kill(threads[i % 2], SIGUSR1);
        for (int before = forks; forks == before;) usleep(500);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return 0;
}

// ---- first: fork while another thread makes the first call ----

static void *first_call(void *name) {
    work(name);
    return 0;
}

static int first(void) {
    for (int i = 0; i < 60; i++) {
        pid_t program = fork();
        if (!program) {
            execl("/proc/self/exe", "guest", "first-one", directory, (char *)0);
            _exit(1);
        }
        int status;
        CHECK(waitpid(program, &status, 0) == program);
        CHECK(status == 0);
    }
    return 0;
}

static int first_one(void) {
    pthread_t thread;
    alarm(300);
    char name[32];
    snprintf(name, sizeof name, "first-%d", getpid());
    pthread_create(&thread, 0, first_call, name);
    usleep(getpid() % 16 * 100);
    pid_t child = fork();
    if (!child) {
        alarm(300);
        work("child");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pthread_join(thread, 0);
    return 0;
}

int main(int count_of, char **arguments) {
    static const struct {
        const char *name;
        int (*part)(void);
    } parts[] = {{"depth", depth},       {"small", small}, {"alternate", alternate}, {"handlers", handlers},
                 {"actions", actions},   {"jumps", jumps}, {"order", order},         {"faults", faults},
                 {"locks", locks},       {"pipes", pipes}, {"early", early},         {"exec", exec_part},
                 {"steps", steps_part},  {"cancel", cancel}, {"fork", fork_part},    {"first", first},
                 {"first-one", first_one}, {"exec-mask", exec_mask}};
    if (count_of < 3) return 2;
    snprintf(directory, sizeof directory, "%s", arguments[2]);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strcmp(parts[i].name, arguments[1])) return parts[i].part();
    return 2;
}
