// Common code of the programs that check an instance while processes are killed or stopped: random numbers
// that follow from a seed, contents that identify their write and offset, and the assertion `MUST`. Each
// program defines its own `fail`, which reports the failure.
#pragma once
#include <stdint.h>

static uint64_t seed_now, first_seed;

static uint64_t next(void) {
    uint64_t z = seed_now += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

// A number from 0 to `end - 1`.
static uint64_t uniform(uint64_t end) { return next() % end; }

// Bytes that identify the write (by its seed) and the offset.
static void fill(unsigned char *to, uint64_t seed, uint64_t length) {
    for (uint64_t at = 0; at < length; at++) to[at] = (unsigned char)((seed + at * 7 + (at >> 8) * 13) | 1);
}

static void fail(const char *format, ...);

#define MUST(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)
