// Eight threads in one process: one table of descriptors, one file system.
#include "check.h"
#include <pthread.h>

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
        // One of eight makes the file: semantics.md, promise 1.
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

// Writes and looks at a descriptor that another thread replaces: it always stands for a file.
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

int main(int count, char **arguments) {
    enter(count, arguments);
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
    return finish();
}
