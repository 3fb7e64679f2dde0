/* Arithmetic that says how large its results are, while it writes them: see ../../measure.py and values.c. */
#include "kernels.h"

enum { STREAMED = 1 << 16 }; /* numbers; results of more go past the caches, which saves reading what they overwrite */

/* out = x + y, or without y out = x · weight, from `at` on; `most`: the bits of the largest |out| so far. */
INLINE uint32_t rest(const float *x, const float *y, float weight, int64_t at, int64_t n, float *out, uint32_t most)
{
    for (int64_t i = at; i < n; i++) {
        float found = y ? x[i] + y[i] : x[i] * weight;
        most = larger(most, bits_of(found) & 0x7FFFFFFF);
        out[i] = found;
    }
    return most;
}

#if defined(__x86_64__)
/* The same of whole groups of 32. */
__attribute__((target("avx2"), always_inline)) static inline uint32_t
groups(const float *x, const float *y, float weight, int64_t whole, float *out, int streams)
{
    __m256i size = _mm256_set1_epi32(0x7FFFFFFF), most[4];
    __m256 times = _mm256_set1_ps(weight);
    uint32_t each[8], found = 0;
    for (int k = 0; k < 4; k++)
        most[k] = _mm256_setzero_si256();
    for (int64_t at = 0; at < whole; at += 32) {
        for (int k = 0; k < 4; k++) {
            __m256 v = _mm256_loadu_ps(x + at + 8 * k);
            v = y ? _mm256_add_ps(v, _mm256_loadu_ps(y + at + 8 * k)) : _mm256_mul_ps(v, times);
            most[k] = _mm256_max_epu32(most[k], _mm256_and_si256(_mm256_castps_si256(v), size));
            if (streams)
                _mm256_stream_ps(out + at + 8 * k, v);
            else
                _mm256_storeu_ps(out + at + 8 * k, v);
        }
    }
    if (streams)
        _mm_sfence();
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_si256((__m256i *)each, most[k]);
        for (int i = 0; i < 8; i++)
            found = larger(found, each[i]);
    }
    return found;
}

INLINE int streams(const float *x, int64_t n, const float *out)
{
    return n >= STREAMED && (uintptr_t)out % 32 == 0 && out != x; /* what is changed in place is in the cache */
}

__attribute__((target("avx2"))) static uint32_t scale_groups(const float *x, float weight, int64_t whole, float *out)
{
    if (weight != 1.0f && streams(x, whole, out))
        return groups(x, 0, weight, whole, out, 1);
    return groups(x, 0, weight, whole, out, 0); /* copies as well: they are made to be read at once */
}

__attribute__((target("avx2"))) static uint32_t sum_groups(const float *x, const float *y, int64_t whole, float *out)
{
    return streams(x, whole, out) ? groups(x, y, 0.0f, whole, out, 1) : groups(x, y, 0.0f, whole, out, 0);
}
#endif

/* out = x · weight; gives the bits of the largest |out|. */
uint32_t scale_to(const float *x, int64_t n, float weight, float *out)
{
    uint32_t most = 0;
    int64_t at = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        at = n / 32 * 32;
        most = scale_groups(x, weight, at, out);
    }
#endif
    return rest(x, 0, weight, at, n, out, most);
}

/* out = x + y; the same. */
uint32_t sum_to(const float *x, const float *y, int64_t n, float *out)
{
    uint32_t most = 0;
    int64_t at = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        at = n / 32 * 32;
        most = sum_groups(x, y, at, out);
    }
#endif
    return rest(x, y, 0.0f, at, n, out, most);
}
