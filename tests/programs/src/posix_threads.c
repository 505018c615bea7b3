// Eight threads in one process: one table of descriptors, one file system.
#include "check.h"
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 8, FILES = 300 };
static int shared, winners[FILES], begin;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;

static void *work(void *argument) {
    long me = (long)argument;
    char name[64], text[64], got[64];
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "own-%ld-%d", me, i);
        int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        MUST(fd >= 0);
        int length = snprintf(text, sizeof text, "thread %ld file %d", me, i);
        MUST(write(fd, text, length) == length && pread(fd, got, sizeof got, 0) == length && !memcmp(text, got, length));
        MUST(close(fd) == 0);
        // One of eight creates the file: "Operations on one name or one file are atomic and seen at
        // once everywhere" (docs/semantics/sharing.md).
        snprintf(name, sizeof name, "once-%d", i);
        fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);
        MUST(fd >= 0 || errno == EEXIST);
        if (fd >= 0) {
            pthread_mutex_lock(&mutex);
            winners[i]++;
            pthread_mutex_unlock(&mutex);
            close(fd);
        }
        long at = (long)i * THREADS + me;
        MUST(pwrite(shared, &at, sizeof at, at * sizeof at) == sizeof at);
        MUST(write(begin, "0123456789abcdef", 16) == 16);
        if (i % 3 == 0) {
            snprintf(name, sizeof name, "own-%ld-%d", me, i);
            MUST(unlink(name) == 0);
        }
    }
    return NULL;
}

enum { REPLACED = 100, REPLACEMENTS = 20000 };
static int is_over;

// Writes to and queries a descriptor that another thread replaces: it always refers to a file.
static void *write_meanwhile(void *argument) {
    (void)argument;
    char byte;
    long rounds = 0;
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST) || rounds == 0) {
        MUST(write(REPLACED, "w", 1) == 1);
        MUST(pread(REPLACED, &byte, 1, 0) == 1 && byte == 'x');
        rounds++;
    }
    return NULL;
}

static void replace_meanwhile(void) {
    int files[2] = {open("one", O_CREAT | O_RDWR | O_APPEND, 0600), open("two", O_CREAT | O_RDWR | O_APPEND, 0600)};
    for (int i = 0; i < 2; i++) MUST(write(files[i], "x", 1) == 1);
    MUST(dup2(files[0], REPLACED) == REPLACED);
    pthread_t writer;
    MUST(pthread_create(&writer, NULL, write_meanwhile, NULL) == 0);
    for (int i = 1; i <= REPLACEMENTS; i++) MUST(dup2(files[i % 2], REPLACED) == REPLACED);
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    MUST(pthread_join(writer, NULL) == 0);
    MUST(close(REPLACED) == 0 && close(files[0]) == 0 && close(files[1]) == 0);
    MUST(unlink("one") == 0 && unlink("two") == 0);
}

// A call whose buffer is inaccessible pauses in the middle, in the signal handler, until the descriptor
// refers to another file. The kernel returns EFAULT instead: then there is nothing to test.
enum { PAGE = 4096, LENGTH = 3 * PAGE };
static char *buffer;
static int in_flight;
static sem_t is_in, may_go;

static void stand_still(int signal) {
    (void)signal;
    sem_post(&is_in);
    while (sem_wait(&may_go) != 0) {}
    MUST(mprotect(buffer, LENGTH, PROT_READ | PROT_WRITE) == 0);
}

// Enough files to reuse the memory of a file whose descriptor was closed during a call.
enum { NEW = 64 };
static int new_files[NEW];

static void make_new(void) {
    char name[16];
    for (int i = 0; i < NEW; i++) {
        snprintf(name, sizeof name, "new-%d", i);
        MUST((new_files[i] = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600)) >= 0);
        MUST(write(new_files[i], "abc", 3) == 3);
    }
}

// No call moved their offsets or extended them.
static void check_new(void) {
    char name[16];
    for (int i = 0; i < NEW; i++) {
        snprintf(name, sizeof name, "new-%d", i);
        MUST(lseek(new_files[i], 0, SEEK_CUR) == 3 && size_of(name) == 3);
        MUST(write(new_files[i], "d", 1) == 1 && size_of(name) == 4 && close(new_files[i]) == 0 && unlink(name) == 0);
    }
}

static void close_in_handler(int signal) {
    (void)signal;
    MUST(close(in_flight) == 0);
    make_new();
    MUST(mprotect(buffer, LENGTH, PROT_READ | PROT_WRITE) == 0);
}

enum { READ, READ_AT, WRITE, WRITE_AT, APPEND, CALLS };

static void *call(void *argument) {
    long got = 0;
    switch ((long)argument) {
    case READ: got = read(in_flight, buffer, LENGTH); break;
    case READ_AT: got = pread(in_flight, buffer, LENGTH, PAGE); break;
    case WRITE: case APPEND: got = write(in_flight, buffer, LENGTH); break;
    case WRITE_AT: got = pwrite(in_flight, buffer, LENGTH, 4 * PAGE); break;
    }
    if (got < 0 && errno == EFAULT) {
        sem_post(&is_in);
        return NULL;
    }
    MUST(got == LENGTH);
    return buffer;
}

static void start(long kind) {
    MUST((in_flight = open("flight", O_CREAT | O_TRUNC | O_RDWR | (kind == APPEND ? O_APPEND : 0), 0600)) >= 0);
    MUST(ftruncate(in_flight, kind == READ || kind == READ_AT ? 8 * PAGE : PAGE) == 0);
    MUST(mprotect(buffer, LENGTH, PROT_NONE) == 0);
}

enum { CLOSE, REPLACE, CLOSE_DUPLICATE, FORK, WAYS };

// A call whose descriptor is closed or replaced while it runs acts on the file that it began with, not
// on one that is opened meanwhile.
static void change_meanwhile(long kind, int way) {
    start(kind);
    int second = way == CLOSE_DUPLICATE ? dup(in_flight) : -1, child = 0;
    pthread_t caller;
    MUST(pthread_create(&caller, NULL, call, (void *)kind) == 0);
    while (sem_wait(&is_in) != 0) {}
    if (way == FORK) {
        child = fork();
        MUST(child >= 0);
        if (child == 0) {
            // The child has the descriptor as well, and none of the calls.
            char byte;
            _exit(pread(in_flight, &byte, 1, 0) == 1 && close(in_flight) == 0 ? 0 : 1);
        }
    }
    if (way == REPLACE) {
        int null = open("/dev/null", O_RDWR);
        MUST(null >= 0 && dup2(null, in_flight) == in_flight && close(null) == 0);
    } else {
        MUST(close(in_flight) == 0);
    }
    if (second >= 0) MUST(close(second) == 0);
    make_new();
    sem_post(&may_go);
    void *is_ours;
    MUST(pthread_join(caller, &is_ours) == 0);
    if (way == REPLACE) MUST(close(in_flight) == 0);
    check_new();
    if (is_ours && kind >= WRITE) {
        CHECK(size_of("flight") == (kind == WRITE ? LENGTH : kind == APPEND ? PAGE + LENGTH : 4 * PAGE + LENGTH));
    }
    if (!is_ours) while (sem_trywait(&may_go) == 0) {}
    int status = 0;
    if (child) MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(unlink("flight") == 0);
}

static void catch_with(void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
}

// The same in a signal handler, in a process that has no other thread yet.
static void close_by_handler(void) {
    catch_with(close_in_handler);
    buffer = mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(buffer != MAP_FAILED);
    for (long kind = 0; kind < CALLS; kind++) {
        start(kind);
        if (call((void *)kind)) check_new(); else close(in_flight);
        MUST(unlink("flight") == 0);
    }
}

static void close_meanwhile(void) {
    catch_with(stand_still);
    MUST(sem_init(&is_in, 0, 0) == 0 && sem_init(&may_go, 0, 0) == 0);
    for (long kind = 0; kind < CALLS; kind++)
        for (int way = 0; way < WAYS; way++) change_meanwhile(kind, way);
    MUST(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
}

int main(int count, char **arguments) {
    enter(count, arguments);
    // These touch inaccessible pages, which a memory checker reports.
    int is_watched = getenv("MEMORY_IS_WATCHED") != NULL;
    if (!is_watched) close_by_handler();
    shared = open("shared", O_CREAT | O_RDWR, 0600);
    begin = open("stream", O_CREAT | O_RDWR, 0600);
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; i++) MUST(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < FILES; i++) CHECK(winners[i] == 1);
    long value;
    for (long i = 0; i < THREADS * FILES; i++) MUST(pread(shared, &value, sizeof value, i * sizeof value) == sizeof value && value == i);
    // Writes of one open file by many threads do not overlap.
    CHECK(size_of("stream") == THREADS * FILES * 16L && lseek(begin, 0, SEEK_CUR) == THREADS * FILES * 16L);
    char block[16];
    for (int i = 0; i < THREADS * FILES; i++) MUST(pread(begin, block, 16, i * 16) == 16 && !memcmp(block, "0123456789abcdef", 16));
    DIR *dir = opendir(".");
    int entries = 0;
    while (readdir(dir)) entries++;
    CHECK(entries == 2 + 2 + FILES + THREADS * FILES * 2 / 3);
    closedir(dir);
    replace_meanwhile();
    if (!is_watched) close_meanwhile();
    return finish();
}
