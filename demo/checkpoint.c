// An MPI program's checkpoint: one file per rank and one shared by all, written, read back by the
// neighbour and compared; rank 0 prints one checksum over everything that was read.
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = 1 << 20 }; // 8 MiB for each rank

#define MUST(condition) do { if (!(condition)) { perror(#condition); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

static uint64_t value(uint64_t rank, uint64_t i) {
    uint64_t x = (rank << 40) + i + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

// Compares with what that rank must have written and adds it up.
static uint64_t verify(const uint64_t *words, int rank) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < WORDS; i++) {
        MUST(words[i] == value(rank, i));
        sum = sum * 31 + words[i];
    }
    return sum;
}

static void own_files(const char *directory, int rank, int other, uint64_t *words, uint64_t *sum) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%d", directory, rank);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    MUST(fd >= 0);
    for (size_t done = 0; done < WORDS * sizeof *words; done += 1 << 20)
        MUST(write(fd, (char *)words + done, 1 << 20) == 1 << 20);
    MUST(fsync(fd) == 0 && close(fd) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof path, "%s/rank-%d", directory, other);
    fd = open(path, O_RDONLY);
    MUST(fd >= 0);
    for (size_t done = 0; done < WORDS * sizeof *words; done += 1 << 20)
        MUST(read(fd, (char *)words + done, 1 << 20) == 1 << 20);
    MUST(close(fd) == 0);
    *sum += verify(words, other);
}

static void shared_file(const char *directory, int rank, int other, uint64_t *words, uint64_t *sum) {
    char path[4096];
    snprintf(path, sizeof path, "%s/shared", directory);
    for (uint64_t i = 0; i < WORDS; i++) words[i] = value(rank, i);
    MPI_File file;
    MUST(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    MPI_Offset own = (MPI_Offset)rank * WORDS * sizeof *words, next = (MPI_Offset)other * WORDS * sizeof *words;
    MUST(MPI_File_write_at_all(file, own, words, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MUST(MPI_File_sync(file) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_sync(file) == MPI_SUCCESS);
    MUST(MPI_File_read_at_all(file, next, words, WORDS, MPI_UINT64_T, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    *sum += verify(words, other);
    MUST(MPI_File_close(&file) == MPI_SUCCESS);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    uint64_t *words = malloc(WORDS * sizeof *words), sum = 0, total = 0;
    MUST(count == 2 && words);
    for (uint64_t i = 0; i < WORDS; i++) words[i] = value(rank, i);
    own_files(arguments[1], rank, (rank + 1) % size, words, &sum);
    shared_file(arguments[1], rank, (rank + 1) % size, words, &sum);
    MPI_Reduce(&sum, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%016llx\n", (unsigned long long)total);
    free(words);
    MPI_Finalize();
    return 0;
}
