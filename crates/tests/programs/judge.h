// What the programs share that judge an instance while processes are killed or stopped: numbers that
// follow from a seed, bytes that tell where they belong, and what ends it. What is wrong is said by each
// of them in its own `fail`.
#pragma once
#include <stdint.h>

static uint64_t seed_now, first_seed;

static uint64_t next(void) {
    uint64_t z = seed_now += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t end) { return next() % end; }

// Bytes that tell which write and which place they are of.
static void fill(unsigned char *to, uint64_t seed, uint64_t length) {
    for (uint64_t at = 0; at < length; at++) to[at] = (unsigned char)((seed + at * 7 + (at >> 8) * 13) | 1);
}

static void fail(const char *format, ...);

#define MUST(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)
