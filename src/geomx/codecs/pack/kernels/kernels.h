/* What all kernels share. See values.c. */
#ifndef GEOMX_KERNELS_H
#define GEOMX_KERNELS_H
#include <float.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FOR_EACH_CPU
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian, and so is what these kernels read and write"
#endif
#define INLINE static inline __attribute__((always_inline))

enum { FINE = 0, BAD_CODE = 1, BAD_PADDING = 2, BAD_COUNT = 3, BAD_INDEX = 4 };
enum { BLOCK = 128, SIGN_BLOCK = 1024, TILE = 1024 }; /* a tile is whole blocks, and the nearest cache holds it */

INLINE uint64_t word_at(const void *from) { uint64_t w; memcpy(&w, from, 8); return w; }
INLINE uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
INLINE float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

#endif
