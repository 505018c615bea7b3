// MPI-IO on one shared file: collective blocks, a strided view, independent reads of others' blocks.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 1024, ROUNDS = 64 }; // ints per block: 4096 bytes

#define MUST(condition) do { if (!(condition)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

static int value(int rank, int round, int i) { return rank * 1000003 + round * 1009 + i; }

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, size, block[BLOCK];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_File file;
    MUST(count == 2);
    MUST(MPI_File_open(MPI_COMM_WORLD, arguments[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    // First half: in each round, the ranks write their adjacent blocks collectively.
    for (int round = 0; round < ROUNDS / 2; round++) {
        for (int i = 0; i < BLOCK; i++) block[i] = value(rank, round, i);
        MPI_Offset at = ((MPI_Offset)round * size + rank) * sizeof block;
        MUST(MPI_File_write_at_all(file, at, block, BLOCK, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    }
    // Second half: the same pattern through a strided view.
    MPI_Datatype strided;
    MPI_Type_vector(ROUNDS / 2, BLOCK, BLOCK * size, MPI_INT, &strided);
    MPI_Type_commit(&strided);
    MPI_Offset half = (MPI_Offset)ROUNDS / 2 * size * sizeof block;
    MUST(MPI_File_set_view(file, half + rank * sizeof block, MPI_INT, strided, "native", MPI_INFO_NULL) == MPI_SUCCESS);
    int *all = malloc(ROUNDS / 2 * sizeof block);
    for (int round = 0; round < ROUNDS / 2; round++)
        for (int i = 0; i < BLOCK; i++) all[round * BLOCK + i] = value(rank, ROUNDS / 2 + round, i);
    MUST(MPI_File_write_all(file, all, ROUNDS / 2 * BLOCK, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MUST(MPI_File_sync(file) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_sync(file) == MPI_SUCCESS);
    MUST(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL) == MPI_SUCCESS);
    MPI_Offset end;
    MUST(MPI_File_get_size(file, &end) == MPI_SUCCESS && end == 2 * half);
    // Each rank reads the blocks of its neighbour.
    int other = (rank + 1) % size;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Offset at = ((MPI_Offset)round * size + other) * sizeof block;
        MUST(MPI_File_read_at(file, at, block, BLOCK, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        for (int i = 0; i < BLOCK; i++) MUST(block[i] == value(other, round, i));
    }
    MUST(MPI_File_close(&file) == MPI_SUCCESS);
    free(all);
    MPI_Type_free(&strided);
    MPI_Finalize();
    return 0;
}
