// Checkpoints of an MPI program: `checkpoints write DIRECTORY` writes several, one after another, each a file per
// rank and one shared by all. In the middle of one, when all ranks have written half of their files, it prints
// "half" and goes on when a line, or the end, of its input has come. `checkpoints read DIRECTORY` reads all of them,
// each rank what its neighbour wrote, compares every word, and prints one checksum over them.
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHECKPOINTS = 5,
    INTERRUPTED = 2,
    BLOCK = 1 << 20,
    BLOCKS = 6, // for each rank, in a file of its own and in the shared one
    WORDS = BLOCK / sizeof(uint64_t),
};

#define MUST(condition) do { if (!(condition)) { perror(#condition); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

static int rank, size;
static uint64_t words[WORDS];

// The word at a place of what a rank writes: `number` is the checkpoint, `shared` whether it is the shared file.
static uint64_t value(int of, int number, int shared, int block, uint64_t i) {
    uint64_t x = ((uint64_t)of << 48) + ((uint64_t)number << 40) + ((uint64_t)shared << 36) + ((uint64_t)block << 24) + i;
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

static void path_of(char *path, size_t length, const char *directory, int number, int of) {
    int used = snprintf(path, length, "%s/%d/", directory, number);
    if (of < 0) snprintf(path + used, length - used, "shared");
    else snprintf(path + used, length - used, "rank-%d", of);
}

// Blocks `first` to `end` of a rank's part: in the shared file those of all ranks take turns.
static void write_blocks(int fd, int number, int shared, int first, int end) {
    for (int block = first; block < end; block++) {
        for (uint64_t i = 0; i < WORDS; i++) words[i] = value(rank, number, shared, block, i);
        off_t at = (off_t)(shared ? block * size + rank : block) * BLOCK;
        for (size_t done = 0; done < BLOCK;) {
            ssize_t more = pwrite(fd, (char *)words + done, BLOCK - done, at + done);
            MUST(more > 0);
            done += more;
        }
    }
}

static void read_blocks(int fd, int number, int shared, int of, uint64_t *sum) {
    for (int block = 0; block < BLOCKS; block++) {
        off_t at = (off_t)(shared ? block * size + of : block) * BLOCK;
        memset(words, 0, sizeof words);
        for (size_t done = 0; done < BLOCK;) {
            ssize_t more = pread(fd, (char *)words + done, BLOCK - done, at + done);
            MUST(more > 0);
            done += more;
        }
        for (uint64_t i = 0; i < WORDS; i++) {
            MUST(words[i] == value(of, number, shared, block, i));
            *sum = *sum * 31 + words[i];
        }
    }
}

static void wait_for_input(void) {
    int letter;
    printf("half\n");
    fflush(stdout);
    do letter = getchar(); while (letter != '\n' && letter != EOF);
}

static void write_checkpoint(const char *directory, int number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", directory, number);
    if (rank == 0) MUST(mkdir(path, 0755) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    path_of(path, sizeof path, directory, number, rank);
    int own = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    MUST(own >= 0);
    path_of(path, sizeof path, directory, number, -1);
    int shared = open(path, O_CREAT | O_WRONLY, 0644);
    MUST(shared >= 0);
    write_blocks(own, number, 0, 0, BLOCKS / 2);
    write_blocks(shared, number, 1, 0, BLOCKS / 2);
    if (number == INTERRUPTED) {
        MPI_Barrier(MPI_COMM_WORLD);
        // The other ranks write on meanwhile.
        if (rank == 0) wait_for_input();
    }
    write_blocks(own, number, 0, BLOCKS / 2, BLOCKS);
    write_blocks(shared, number, 1, BLOCKS / 2, BLOCKS);
    MUST(fsync(own) == 0 && close(own) == 0);
    MUST(fsync(shared) == 0 && close(shared) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void read_checkpoint(const char *directory, int number, uint64_t *sum) {
    int other = (rank + 1) % size;
    for (int shared = 0; shared < 2; shared++) {
        char path[4096];
        path_of(path, sizeof path, directory, number, shared ? -1 : other);
        int fd = open(path, O_RDONLY);
        MUST(fd >= 0);
        struct stat found;
        MUST(fstat(fd, &found) == 0 && found.st_size == (off_t)BLOCKS * BLOCK * (shared ? size : 1));
        read_blocks(fd, number, shared, other, sum);
        MUST(close(fd) == 0);
    }
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(count == 3);
    uint64_t sum = 0, total = 0;
    int writes = strcmp(arguments[1], "write") == 0;
    for (int number = 0; number < CHECKPOINTS; number++) {
        if (writes) write_checkpoint(arguments[2], number);
        else read_checkpoint(arguments[2], number, &sum);
    }
    MPI_Reduce(&sum, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0 && writes) printf("written\n");
    if (rank == 0 && !writes) printf("%016llx\n", (unsigned long long)total);
    MPI_Finalize();
    return 0;
}
