// Processes that are killed at random moments of their work on an instance, and one that kills them and
// checks the result: `kills DIR LOG SEED KILLS`. The test is soak/kills.rs; kills_life.h has the work of a
// process.
//
// It prints a line after each round, at whose end all processes ended and everything was compared. The first
// failure ends it with a line on stderr and code 1.
#include "kills_life.h"

// ---- the killing process ----

static char **own_words;

static void begin_life(int slot) {
    uint64_t seed = next();
    int execs = uniform(16) == 0;
    pid_t child = fork();
    MUST(child >= 0, "fork");
    if (child > 0) {
        setpgid(child, child);
        pids[slot] = child;
        return;
    }
    memset(pids, 0, sizeof pids);
    setpgid(0, 0);
    if (execs) {
        char number[8], text[32];
        sprintf(number, "%d", slot), sprintf(text, "%llu", (unsigned long long)seed);
        execl(own_words[0], own_words[0], own_words[1], own_words[2], text, number, "of", "life", NULL);
        fail("exec");
    }
    live(slot, seed);
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

static void pause_us(uint64_t micros) {
    struct timespec time = {micros / 1000000, micros % 1000000 * 1000};
    nanosleep(&time, NULL);
}

// Waits for the end of a process and its children, which were killed or told to finish.
static void await(int slot, int was_killed) {
    uint64_t begun = now_ms();
    for (;;) {
        int status = 0;
        pid_t gone = waitpid(-pids[slot], &status, was_killed ? 0 : WNOHANG);
        if (gone < 0) {
            MUST(errno == ECHILD, "waitpid");
            break;
        }
        if (gone == pids[slot]) {
            int is_right = was_killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
            // A process that is finishing may be killed as well.
            if (!is_right && !(was_killed && status == 0)) me = slot, fail("a process ends with status %d", status);
        }
        if (gone == 0) {
            mine = &note->slots[slot];
            MUST(now_ms() - begun < TIMEOUT_S * 1000, "slot %d hangs", slot);
            pause_us(500);
        }
    }
    mine = NULL;
}

// Each acknowledged record is in the common file once.
static void verify_records(void) {
    static unsigned char found[SLOTS][RECORDS];
    memset(found, 0, sizeof found);
    unsigned char record[RECORD], right[RECORD];
    int fd = open("common/log", O_RDWR);
    MUST(fd >= 0, "open the common file");
    for (uint64_t at = 0;; at += RECORD) {
        ssize_t got = pread(fd, record, RECORD, at);
        MUST(got >= 0, "read the common file");
        if (got == 0) break;
        uint64_t number;
        memcpy(&number, record + 8, 8);
        if (got != RECORD || record[0] != 'r' || record[1] >= SLOTS || number >= RECORDS) continue;
        fill(right, number, RECORD);
        right[0] = 'r', right[1] = record[1], memcpy(right + 8, &number, 8);
        if (memcmp(right, record, RECORD) == 0) found[record[1]][number]++;
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        struct slot *of = &note->slots[slot];
        for (uint64_t number = 0; number < of->records; number++)
            MUST(found[slot][number] == 1 || (of->interrupted[number] && found[slot][number] == 0),
                 "record %llu of slot %d exists %d times", (unsigned long long)number, slot,
                 found[slot][number]);
        of->records = 0;
        memset(of->interrupted, 0, sizeof of->interrupted);
    }
    MUST(ftruncate(fd, 0) == 0 && close(fd) == 0, "truncate the common file");
}

static void compare_all(void) {
    for (me = 0; me < SLOTS; me++) {
        mine = &note->slots[me];
        resolve();
        for (int name = 0; name < NAMES; name++) verify(name);
        verify_listing();
    }
    me = -1, mine = NULL;
    for (int name = 0; name < COMMON; name++)
        MUST(is_there(common_path(name)) == (note->owner[name] != 0), "%s, owner: slot %d, exists: %d",
             common_path(name), note->owner[name] - 1, is_there(common_path(name)));
    verify_records();
}

// A request of a killed process is over when the daemons have admitted a process that began later. Lives
// are forked, so they share the session of this process: another one has to begin in between.
static void let_requests_end(int slot) {
    char number[8];
    sprintf(number, "%d", slot);
    pid_t child = fork();
    MUST(child >= 0, "fork");
    if (child == 0) {
        execl(own_words[0], own_words[0], own_words[1], own_words[2], "0", number, "between", NULL);
        fail("exec");
    }
    int status = -1;
    MUST(waitpid(child, &status, 0) == child && status == 0, "the process between ends with status %d", status);
}

// Makes the daemons of all directories of the slot admit this process.
static void be_admitted(int slot) {
    char path[32];
    for (int at = 0; at <= DIRECTORIES; at++) {
        if (at < DIRECTORIES) sprintf(path, "%c%d/between", "ab"[at], slot);
        else sprintf(path, "common/between");
        MUST(!is_there(path), "%s is there", path);
    }
    _exit(0);
}

static void round_of(uint64_t kills) {
    atomic_store(&note->stop, 0);
    for (int slot = 0; slot < SLOTS; slot++) begin_life(slot);
    while (kills > 0 && !note->failed) {
        static const uint64_t scales[] = {60, 400, 2500, 8000};
        pause_us(uniform(scales[uniform(4)]));
        // One, or all of them at a time.
        uint64_t victims = uniform(6) ? 1 : SLOTS, first = uniform(SLOTS);
        if (victims > kills) victims = kills;
        for (uint64_t each = 0; each < victims; each++) kill(-pids[(first + each) % SLOTS], SIGKILL);
        for (uint64_t each = 0; each < victims; each++) {
            int slot = (first + each) % SLOTS;
            await(slot, 1);
            let_requests_end(slot);
            begin_life(slot);
        }
        kills -= victims;
    }
    atomic_store(&note->stop, 1);
    for (int slot = 0; slot < SLOTS; slot++) await(slot, 0);
    if (note->failed) kill_all(), _exit(1);
    compare_all();
}

static void remove_all(void) {
    for (int slot = 0; slot < SLOTS; slot++) {
        char path[16];
        for (int name = 0; name < NAMES; name++)
            if (note->slots[slot].of[name] >= 0) MUST(unlink(path_of(slot, name)) == 0, "unlink f%d", name);
        for (int half = 0; half < DIRECTORIES; half++) {
            if (note->slots[slot].has_directory[half]) MUST(rmdir(directory_of(slot, half)) == 0, "rmdir");
            sprintf(path, "%c%d", "ab"[half], slot);
            MUST(rmdir(path) == 0, "rmdir %s", path);
        }
    }
    for (int name = 0; name < COMMON; name++)
        if (note->owner[name]) MUST(unlink(common_path(name)) == 0, "unlink");
    MUST(unlink("common/log") == 0 && rmdir("common") == 0, "remove the common directory");
}

int main(int count, char **words) {
    own_words = words;
    if (count < 5) return 2;
    int fd = open(words[2], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *note) != 0) return 2;
    note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (note == MAP_FAILED) return 2;
    close(fd);
    first_seed = seed_now = strtoull(words[3], NULL, 0);
    MUST(chdir(words[1]) == 0, "chdir %s", words[1]);
    if (count == 6) be_admitted(atoi(words[4]));
    if (count > 6) live(atoi(words[4]), first_seed);

    // Children of killed processes become children of this one.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    umask(0);
    MUST(mkdir("common", 0700) == 0 && close(creat("common/log", 0600)) == 0, "make the common file");
    for (int slot = 0; slot < SLOTS; slot++) {
        char path[16];
        memset(note->slots[slot].of, -1, sizeof note->slots[slot].of);
        for (int half = 0; half < 2; half++) {
            sprintf(path, "%c%d", "ab"[half], slot);
            MUST(mkdir(path, 0700) == 0, "mkdir %s", path);
        }
    }
    uint64_t kills = strtoull(words[4], NULL, 0);
    for (uint64_t left = kills; left > 0;) {
        uint64_t now = left < ROUND_KILLS ? left : ROUND_KILLS;
        round_of(now);
        left -= now;
        printf("killed %llu\n", (unsigned long long)(kills - left));
        fflush(stdout);
    }
    remove_all();
    printf("calls");
    uint64_t calls = 0;
    for (int slot = 0; slot < SLOTS; slot++) calls += note->slots[slot].calls;
    printf(" %llu; interrupted calls, done / not done:", (unsigned long long)calls);
    for (int kind = 0; kind < GIVE_UP; kind++)
        printf(" %s %llu/%llu", KINDS[kind], (unsigned long long)note->whole[kind], (unsigned long long)note->undone[kind]);
    printf("; torn writes %llu\n", (unsigned long long)note->torn[WRITE]);
    return 0;
}
