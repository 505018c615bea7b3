// Compresses stdin to stdout with the zlib just built; -d restores it.
#include <stdio.h>
#include <string.h>
#include <zlib.h>

int main(int count, char **arguments) {
    static char block[65536];
    if (count > 1 && !strcmp(arguments[1], "-d")) {
        gzFile in = gzdopen(0, "rb");
        for (int n; (n = gzread(in, block, sizeof block)) > 0;) fwrite(block, 1, n, stdout);
        return gzclose(in) != Z_OK;
    }
    gzFile out = gzdopen(1, "wb6");
    for (size_t n; (n = fread(block, 1, sizeof block, stdin)) > 0;)
        if (gzwrite(out, block, (unsigned)n) != (int)n) return 1;
    return gzclose(out) != Z_OK;
}
