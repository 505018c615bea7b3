// Worker processes that one program forks and supervises, while they and the instance are stopped and
// continued: each records the call that it is about to make, and a failure in one ends all. Include it after `WORKERS`,
// `struct worker` (with `pid`, `calls`, `what`) and `struct note` (with `failed`, `stop`, `workers`).
#pragma once

// No call takes this long, unless it hangs: the instance's own limit is 30 s.
enum { TIMEOUT_S = 40 };

static struct note *note;
static struct worker *mine;
static int me = -1;

static void kill_all(void) {
    for (int each = 0; each < WORKERS; each++)
        if (each != me && note->workers[each].pid) kill(note->workers[each].pid, SIGKILL);
}

static void fail(const char *format, ...) {
    int error = errno;
    if (atomic_exchange(&note->failed, 1)) _exit(1);
    char text[512];
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    uint64_t calls = 0;
    for (int each = 0; each < WORKERS; each++) calls += note->workers[each].calls;
    dprintf(2, "failed: %s (errno %d %s, worker %d, after %llu calls, seed %llu)\n", text, error,
            strerror(error), me, (unsigned long long)calls, (unsigned long long)first_seed);
    for (int each = 0; each < WORKERS; each++)
        dprintf(2, "  worker %d: %s\n", each, note->workers[each].what);
    kill_all();
    _exit(1);
}

// Records the call that is about to be made, for the report of a failure.
#define DO(...) do { atomic_fetch_add(&mine->calls, 1); snprintf(mine->what, sizeof mine->what, __VA_ARGS__); } while (0)

// Waits for the end of input, then for the workers, and fails when one makes no progress.
static void supervise(void) {
    uint64_t seen[WORKERS] = {0};
    time_t since[WORKERS];
    for (int each = 0; each < WORKERS; each++) since[each] = time(NULL);
    for (int left = WORKERS; left > 0;) {
        struct pollfd input = {0, POLLIN | POLLHUP, 0};
        char byte;
        if (note->stop) usleep(1000);
        else if (poll(&input, 1, 100) > 0 && read(0, &byte, 1) <= 0) note->stop = 1;
        for (int each = 0; each < WORKERS; each++) {
            struct worker *of = &note->workers[each];
            if (of->pid == 0) continue;
            int status = 0;
            if (waitpid(of->pid, &status, WNOHANG) == of->pid) {
                of->pid = 0, left--;
                MUST(status == 0, "worker %d ends with status %d", each, status);
            }
            if (of->calls != seen[each]) seen[each] = of->calls, since[each] = time(NULL);
            MUST(of->pid == 0 || time(NULL) - since[each] < TIMEOUT_S, "worker %d hangs", each);
        }
    }
}
