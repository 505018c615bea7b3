// What the kernel and libc promise a program about calls, processes, signals and cancellation,
// while eight threads do I/O under a timer. Prints one line for each promise; all must say ok.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int failures;
static volatile int stop, ticks;
static sigjmp_buf back;
static sigset_t worker_mask;

static void check(const char *what, int ok) {
    printf("%-28s %s\n", what, ok ? "ok" : "FAILED");
    fflush(stdout);
    failures += !ok;
}

// Does I/O in the handler: the way in is entered again at any instruction.
static void tick(int number) {
    int saved = errno;
    char buffer[64];
    int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (read(file, buffer, sizeof buffer) > 0) ticks++;
    close(file);
    errno = saved;
}

static void *worker(void *argument) {
    char name[64], text[4096], copy[4096];
    long rounds = 0, wrong = 0;
    snprintf(name, sizeof name, "/tmp/torture-%d-%ld", getpid(), (long)argument);
    memset(text, 'a' + (long)argument, sizeof text);
    while (!stop) {
        FILE *file = fopen(name, "we");
        wrong += fwrite(text, 1, sizeof text, file) != sizeof text;
        fclose(file);
        int fd = open(name, O_RDWR | O_CLOEXEC);
        wrong += pread(fd, copy, sizeof copy, 0) != sizeof copy || memcmp(text, copy, sizeof text);
        struct iovec parts[2] = {{text, 10}, {text + 10, 20}};
        wrong += pwritev(fd, parts, 2, 7) != 30;
        struct stat stat;
        wrong += fstat(fd, &stat) || stat.st_size != sizeof text;
        close(fd);
        DIR *directory = opendir("/proc/self/task");
        wrong += !directory || !readdir(directory);
        closedir(directory);
        rounds++;
    }
    unlink(name);
    return (void *)(long)(rounds == 0 || wrong != 0);
}

static int status_of(pid_t child) {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static int seven(void *argument) {
    int file = open("/dev/null", O_WRONLY);
    _exit(write(file, "x", 1) == 1 ? 7 : 1);
}

static volatile int thread_ran;
static int as_thread(void *argument) {
    int file = open("/dev/null", O_WRONLY);
    thread_ran = write(file, "x", 1) == 1;
    close(file);
    return 9;
}

__attribute__((noinline)) static int with_vfork(void) {
    volatile long canary[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", (char *)0);
        _exit(1);
    }
    int ok = status_of(child) == 7;
    for (int i = 0; i < 8; i++) ok &= canary[i] == i + 1;
    return ok;
}

static int cleaned;
static void clean(void *argument) { cleaned = 1; }
static void *blocked(void *pipe) {
    char byte;
    pthread_sigmask(SIG_BLOCK, &worker_mask, 0);
    pthread_cleanup_push(clean, 0);
    if (read(*(int *)pipe, &byte, 1)) {}
    pthread_cleanup_pop(0);
    return 0;
}

static void jump(int number) { siglongjmp(back, 1); }
static void nothing(int number) {}

static void processes(void) {
    int ok = 1;
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) seven(0);
        ok &= status_of(child) == 7;
    }
    check("fork", ok);
    ok = 1;
    for (int i = 0; i < 20; i++) ok &= with_vfork();
    check("vfork and exec", ok);
    ok = 1;
    for (int i = 0; i < 20; i++) {
        char *arguments[] = {"sh", "-c", "exit 7", 0};
        pid_t child;
        ok &= !posix_spawn(&child, "/bin/sh", 0, 0, arguments, environ) && status_of(child) == 7;
    }
    pid_t none;
    char *arguments[] = {"none", 0};
    ok &= posix_spawn(&none, "/does/not/exist", 0, 0, arguments, environ) == ENOENT;
    check("posix_spawn", ok);
    check("system", WEXITSTATUS(system("exit 7")) == 7);
    char line[16] = "";
    FILE *stream = popen("echo seven", "r");
    while (!fgets(line, sizeof line, stream) && errno == EINTR) clearerr(stream);
    check("popen", !strcmp(line, "seven\n") && pclose(stream) == 0);

    char *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check("clone, own stack", status_of(clone(seven, stack + 65536, SIGCHLD, 0)) == 7);
    pid_t child = clone(seven, stack + 65536, CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    check("clone, VM and VFORK", status_of(child) == 7);
    child = clone(as_thread, stack + 65536, CLONE_VM | CLONE_FILES | SIGCHLD, 0);
    check("clone, VM", status_of(child) == 9 && thread_ran);
    struct clone_args fork_args = {.exit_signal = SIGCHLD};
    child = syscall(SYS_clone3, &fork_args, sizeof fork_args);
    if (!child) seven(0);
    check("clone3, raw", status_of(child) == 7);
    check("clone3, null", syscall(SYS_clone3, 0, 0) == -1 && errno == EINVAL);
    child = syscall(SYS_fork);
    if (!child) seven(0);
    check("fork, raw", status_of(child) == 7);
}

static void signals(void) {
    int pipes[2];
    char byte;
    if (pipe(pipes)) exit(2);
    pthread_t thread;
    int ok = 1;
    for (int i = 0; i < 20; i++) {
        void *result;
        cleaned = 0;
        pthread_create(&thread, 0, blocked, &pipes[0]);
        usleep(i * 100);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        ok &= result == PTHREAD_CANCELED && cleaned;
    }
    check("pthread_cancel in read", ok);

    volatile int jumped = 0;
    signal(SIGUSR1, jump);
    ok = 1;
    for (int i = 0; i < 20; i++) {
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec when = {.it_value = {.tv_nsec = 1000000}};
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        if (!sigsetjmp(back, 1)) {
            timer_settime(timer, 0, &when, 0);
            while (1) ok &= read(pipes[0], &byte, 1) < 0 && errno == EINTR;
        } else jumped++;
        timer_delete(timer);
    }
    check("siglongjmp out of read", jumped == 20);

    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR2, &action, 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct itimerspec when = {.it_value = {.tv_nsec = 2000000}, .it_interval = {.tv_nsec = 2000000}};
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &when, 0);
    check("EINTR", read(pipes[0], &byte, 1) == -1 && errno == EINTR);
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGUSR2);
    check("sigsuspend", sigsuspend(&all) == -1 && errno == EINTR);
    timer_delete(timer);

    stack_t alternative = {.ss_sp = malloc(16384), .ss_size = 16384};
    sigaltstack(&alternative, 0);
    struct sigaction other = {.sa_handler = tick, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &other, 0);
    int before = ticks;
    raise(SIGUSR2);
    check("sigaltstack", ticks > before);
}

int main(void) {
    pthread_t threads[8];
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    // The timers' signals below are for the main thread: its handlers jump on its own stack.
    sigemptyset(&worker_mask);
    sigaddset(&worker_mask, SIGUSR1);
    sigaddset(&worker_mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &worker_mask, 0);
    for (long i = 0; i < 8; i++) pthread_create(&threads[i], 0, worker, (void *)i);
    pthread_sigmask(SIG_UNBLOCK, &worker_mask, 0);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, 0);
    processes();
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, 0);
    signals();
    stop = 1;
    long wrong = 0;
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    check("eight threads under a timer", !wrong && ticks > 10);
    return failures != 0;
}
