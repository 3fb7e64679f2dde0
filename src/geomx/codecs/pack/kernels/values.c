/* The inner loops of the codecs, each in one pass over memory: here number forms, in sparse.c which elements.
 *
 * They give the same bits as the torch operations in values.py, two_bit.py, bisparse.py and indices.py, which say what
 * the forms mean and serve wherever this file was not compiled. Hence no fused multiply-add (-ffp-contract=off), sums
 * in the order of a fixed tree, and numbers rounded to the nearest, ties to even. All tensors are float32, contiguous
 * and finite unless something else is said. `left` is what remains to be sent: the payload is taken out of it. Where
 * `values` are given they are added to `left` first, while both are at hand; they may be anything, and the bits of the
 * largest |values| come back.
 */
#include "kernels.h"

#ifndef SOURCE
#define SOURCE 0 /* the digest of these files, by which native.py knows that it calls what it means to call */
#endif
uint64_t source(void) { return SOURCE; }

/* For |x| < 2^22: adding and taking away 1.5 · 2^23 leaves no room for a fraction. */
INLINE float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
INLINE float floored(float x) { float r = nearest(x); return r > x ? r - 1.0f : r; }

/* Non-negative, as bfloat16: not smaller than it was, at most `most`. */
INLINE uint16_t scale_of(float x, uint32_t most)
{
    uint32_t up = (bits_of(x) + 0xFFFF) >> 16;
    return (uint16_t)(up < most ? up : most);
}

INLINE float scale_from(uint16_t bits) { return float_of((uint32_t)bits << 16); }

INLINE float inverse(float over, float scale)
{
    float x = over / scale;
    return scale > 0.0f ? (x < FLT_MAX ? x : FLT_MAX) : 0.0f;
}

INLINE uint32_t largest_in(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++)
        most = larger(most, bits_of(x[i]) & 0x7FFFFFFF);
    return most;
}

/* The bits of the largest |x|; above those of the largest number where there is NaN or Inf. */
FOR_EACH_CPU uint32_t largest_bits(const float *x, int64_t n) { return largest_in(x, n); }

/* left += values; gives the bits of the largest |values|, and of the largest |left| then. */
INLINE uint32_t add_in(float *left, const float *values, int64_t n, uint32_t *largest)
{
    uint32_t most = 0, sums = 0;
    for (int64_t i = 0; i < n; i++) {
        most = larger(most, bits_of(values[i]) & 0x7FFFFFFF);
        left[i] += values[i];
        sums = larger(sums, bits_of(left[i]) & 0x7FFFFFFF);
    }
    *largest = sums;
    return most;
}

FOR_EACH_CPU uint32_t add_to(float *left, const float *values, int64_t n, uint32_t *largest)
{
    return add_in(left, values, n, largest);
}

/* The same for the tile that begins at `at`, if one does and there are values. */
INLINE uint32_t add_tile(float *left, const float *values, int64_t at, int64_t n)
{
    uint32_t most = 0;
    if (!values || at % TILE)
        return 0;
    for (int64_t i = at; i < least(at + TILE, n); i++) {
        most = larger(most, bits_of(values[i]) & 0x7FFFFFFF);
        left[i] += values[i];
    }
    return most;
}

/* ---- whole blocks: a scale for each, then codes of 8 or 4 bits ---------------------------------------------------- */

INLINE void codes_of(float *left, int64_t n, float scale, float inv, float most, const float *noise, uint8_t *codes)
{
    for (int64_t i = 0; i < n; i++) {
        float step = left[i] * inv;
        float code = noise ? floored(step + noise[i]) : nearest(step);
        code = code < -most ? -most : code;
        code = code > most ? most : code;
        left[i] -= code * scale;
        codes[i] = (uint8_t)(int32_t)(code + most);
    }
}

/* Two codes in a byte, the first in its low bits. */
INLINE void pack_nibbles(const uint8_t *codes, int64_t bytes, uint8_t *out)
{
    for (int64_t i = 0; i < bytes; i++) {
        uint16_t two;
        memcpy(&two, codes + 2 * i, 2);
        out[i] = (uint8_t)(two | two >> 4);
    }
}

INLINE void unpack_nibbles(const uint8_t *in, int64_t bytes, uint8_t *codes)
{
    for (int64_t i = 0; i < bytes; i++) {
        uint16_t two = (uint16_t)((in[i] | in[i] << 4) & 0x0F0F);
        memcpy(codes + 2 * i, &two, 2);
    }
}

FOR_EACH_CPU uint32_t take_blocks(float *left, const float *values, int64_t n, int64_t block, int width,
                                  uint32_t most_scale, const float *noise, uint16_t *scales, uint8_t *out)
{
    float most = (float)((1 << (width - 1)) - 1);
    uint8_t codes[BLOCK + 1];
    uint32_t given = 0;
    for (int64_t at = 0, k = 0; at < n; at += block, k++) {
        int64_t m = least(block, n - at);
        uint32_t largest;
        if (values)
            given = larger(given, add_in(left + at, values + at, m, &largest));
        else
            largest = largest_in(left + at, m);
        uint16_t bits = scale_of(float_of(largest) / most, most_scale);
        float scale = scale_from(bits), inv = inverse(1.0f, scale);
        const float *own = noise ? noise + at : 0;
        scales[k] = bits;
        if (width == 8) {
            codes_of(left + at, m, scale, inv, most, own, out + at);
            continue;
        }
        codes_of(left + at, m, scale, inv, most, own, codes);
        codes[m] = 0;
        pack_nibbles(codes, (m + 1) / 2, out + at / 2);
    }
    return given;
}

FOR_EACH_CPU int give_blocks(const uint16_t *scales, const uint8_t *in, int64_t n, int64_t block, int width, float *out)
{
    float most = (float)((1 << (width - 1)) - 1);
    uint8_t top = (uint8_t)((1 << width) - 1), largest = 0, codes[TILE + 1];
    for (int64_t tile = 0; tile < n; tile += TILE) {
        int64_t end = least(tile + TILE, n);
        const uint8_t *from = in + tile * width / 8;
        if (width == 4) {
            unpack_nibbles(from, (end - tile + 1) / 2, codes);
            from = codes;
        }
        for (int64_t i = 0; i < end - tile; i++)
            largest = from[i] > largest ? from[i] : largest;
        for (int64_t at = tile; at < end; at += block, from += block) {
            float scale = scale_from(scales[at / block]);
            for (int64_t i = 0; i < least(block, end - at); i++)
                out[at + i] = ((float)from[i] - most) * scale;
        }
    }
    if (width == 4 && n % 2 && in[n / 2] >> 4)
        return BAD_PADDING;
    return largest < top ? FINE : BAD_CODE;
}

/* Codes 0 to 3 for -1, -1/3, 1/3, 1 of a block's largest. */
FOR_EACH_CPU void take_thirds(float *left, int64_t n, int64_t block, uint32_t most_scale, uint16_t *scales,
                              uint8_t *out)
{
    memset(out, 0, (size_t)(n + 3) / 4);
    for (int64_t at = 0, k = 0; at < n; at += block, k++) {
        int64_t m = least(block, n - at);
        uint16_t bits = scale_of(float_of(largest_in(left + at, m)), most_scale);
        float scale = scale_from(bits), inv = inverse(1.5f, scale);
        scales[k] = bits;
        for (int64_t i = at; i < at + m; i++) {
            float code = nearest(left[i] * inv + 1.5f);
            code = code < 0.0f ? 0.0f : code;
            code = code > 3.0f ? 3.0f : code;
            left[i] -= (code - 1.5f) / 1.5f * scale;
            out[i / 4] |= (uint8_t)((int)code << (2 * (i % 4)));
        }
    }
}

FOR_EACH_CPU int give_thirds(const uint16_t *scales, const uint8_t *in, int64_t n, int64_t block, float *out)
{
    for (int64_t at = 0; at < n; at += block) {
        float scale = scale_from(scales[at / block]);
        for (int64_t i = at; i < least(at + block, n); i++)
            out[i] = ((float)(in[i / 4] >> 2 * (i % 4) & 3) - 1.5f) / 1.5f * scale;
    }
    return n % 4 && in[n / 4] >> (2 * (n % 4)) ? BAD_PADDING : FINE;
}

/* ---- signs -------------------------------------------------------------------------------------------------------- */

/* Adds the first half to the second, again and again; an odd element goes along. `t` is overwritten. */
INLINE float tree_sum(float *t, int64_t n)
{
    while (n > 1) {
        int64_t half = n / 2;
        for (int64_t i = 0; i < half; i++)
            t[i] += t[half + i];
        if (n % 2)
            t[half] = t[2 * half];
        n = half + n % 2;
    }
    return t[0];
}

FOR_EACH_CPU uint32_t take_signs(float *left, const float *values, int64_t n, uint32_t most_scale, uint16_t *scales,
                                 uint8_t *out)
{
    float sizes[SIGN_BLOCK];
    uint8_t signs[SIGN_BLOCK];
    uint32_t given = 0;
    for (int64_t at = 0, k = 0; at < n; at += SIGN_BLOCK, k++) {
        int64_t m = least(SIGN_BLOCK, n - at);
        given = larger(given, add_tile(left, values, at, n));
        for (int64_t i = 0; i < m; i++)
            sizes[i] = float_of(bits_of(left[at + i]) & 0x7FFFFFFF);
        uint16_t bits = scale_of(tree_sum(sizes, m) / (float)m, most_scale);
        float scale = scale_from(bits);
        scales[k] = bits;
        memset(signs, 0, sizeof signs);
        for (int64_t i = 0; i < m; i++) {
            float x = left[at + i];
            signs[i] = x >= 0.0f;
            left[at + i] = x - (x >= 0.0f ? scale : -scale);
        }
        for (int64_t i = 0; i < (m + 7) / 8; i++) {
            const uint8_t *s = signs + 8 * i;
            out[at / 8 + i] = (uint8_t)(s[0] | s[1] << 1 | s[2] << 2 | s[3] << 3 | s[4] << 4 | s[5] << 5 | s[6] << 6
                                        | s[7] << 7);
        }
    }
    return given;
}

FOR_EACH_CPU int give_signs(const uint16_t *scales, const uint8_t *in, int64_t n, float *out)
{
    for (int64_t at = 0, k = 0; at < n; at += SIGN_BLOCK, k++) {
        uint32_t scale = bits_of(scale_from(scales[k]));
        int64_t end = at + least(SIGN_BLOCK, n - at), i = at;
        for (; i + 32 <= end; i += 32) {
            uint32_t minus;
            memcpy(&minus, in + i / 8, 4);
            minus = ~minus;
            float some[32];
            for (int j = 0; j < 32; j++)
                some[j] = float_of(scale | (minus << (31 - j) & 0x80000000));
            memcpy(out + i, some, sizeof some);
        }
        for (; i < end; i++)
            out[i] = float_of(scale | (~(uint32_t)in[i / 8] << (31 - i % 8) & 0x80000000));
    }
    return n % 8 && in[n / 8] >> (n % 8) ? BAD_PADDING : FINE;
}

/* ---- two bits: nothing, plus or minus a step ---------------------------------------------------------------------- */

FOR_EACH_CPU uint32_t take_two_bits(float *left, const float *values, int64_t n, float step, uint8_t *out)
{
    uint8_t codes[4 * 64];
    uint32_t given = 0;
    for (int64_t at = 0; at < n; at += 256) {
        int64_t m = least(256, n - at);
        given = larger(given, add_tile(left, values, at, n));
        memset(codes, 0, sizeof codes);
        for (int64_t i = 0; i < m; i++) {
            float x = left[at + i];
            uint8_t up = x >= step, down = x <= -step;
            left[at + i] = x - (up ? step : down ? -step : 0.0f);
            codes[i] = (uint8_t)(up | down << 1);
        }
        for (int64_t i = 0; i < (m + 3) / 4; i++) {
            uint32_t four;
            memcpy(&four, codes + 4 * i, 4);
            out[at / 4 + i] = (uint8_t)(four | four >> 6 | four >> 12 | four >> 18);
        }
    }
    return given;
}

FOR_EACH_CPU int give_two_bits(const uint8_t *in, int64_t n, float step, float *out)
{
    uint32_t size = bits_of(step), seen = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t codes[2];
        float some[32];
        memcpy(codes, in + i / 4, 8);
        for (int j = 0; j < 32; j++) {
            uint32_t code = codes[j / 16] >> 2 * (j % 16);
            some[j] = float_of(((0 - ((code | code >> 1) & 1)) & size) | (code >> 1) << 31);
        }
        memcpy(out + i, some, sizeof some);
        seen |= (codes[0] & codes[0] >> 1 & 0x55555555) | (codes[1] & codes[1] >> 1 & 0x55555555);
    }
    for (; i < n; i++) {
        uint32_t code = (uint32_t)in[i / 4] >> 2 * (i % 4) & 3;
        out[i] = float_of((code ? size : 0) | (code & 2) << 30);
        seen |= code & code >> 1;
    }
    if (n % 4 && in[n / 4] >> (2 * (n % 4)))
        return BAD_PADDING;
    return seen ? BAD_CODE : FINE;
}

/* ---- float types of 16 bits --------------------------------------------------------------------------------------- */

FOR_EACH_CPU uint32_t take_bf16(float *left, const float *values, int64_t n, uint16_t *out)
{
    uint32_t given = 0;
    for (int64_t at = 0; at < n; at += TILE) {
        given = larger(given, add_tile(left, values, at, n));
        for (int64_t i = at; i < least(at + TILE, n); i++) {
            uint32_t b = bits_of(left[i]);
            uint32_t kept = (b + 0x7FFF + (b >> 16 & 1)) >> 16;
            kept = (kept & 0x7FFF) == 0x7F80 ? kept - 1 : kept;
            out[i] = (uint16_t)kept;
            left[i] -= float_of(kept << 16);
        }
    }
    return given;
}

/* Gives the bits of the largest |x|. */
FOR_EACH_CPU uint32_t give_bf16(const uint16_t *in, int64_t n, float *out)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t b = (uint32_t)in[i] << 16;
        most = larger(most, b & 0x7FFFFFFF);
        out[i] = float_of(b);
    }
    return most;
}

#if defined(__x86_64__)
int has_fp16(void) { return __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx"); }

__attribute__((target("avx,f16c"))) void take_fp16(float *left, int64_t n, float up, float down, uint16_t *out)
{
    __m256 by = _mm256_set1_ps(up), back = _mm256_set1_ps(down);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(left + i);
        __m128i half = _mm256_cvtps_ph(_mm256_mul_ps(x, by), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(out + i), half);
        _mm256_storeu_ps(left + i, _mm256_sub_ps(x, _mm256_mul_ps(_mm256_cvtph_ps(half), back)));
    }
    for (; i < n; i++) {
        out[i] = _cvtss_sh(left[i] * up, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        left[i] -= _cvtsh_ss(out[i]) * down;
    }
}

/* Gives the bits of infinity where one of `out` is none or infinite, else 0. */
__attribute__((target("avx,f16c"))) uint32_t give_fp16(const uint16_t *in, int64_t n, float scale, float *out)
{
    __m256 by = _mm256_set1_ps(scale), size = _mm256_set1_ps(float_of(0x7FFFFFFF));
    __m256 most = _mm256_set1_ps(FLT_MAX), bad = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))), by);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_and_ps(x, size), most, _CMP_NLE_UQ));
        _mm256_storeu_ps(out + i, x);
    }
    int found = _mm256_movemask_ps(bad);
    for (; i < n; i++) {
        out[i] = _cvtsh_ss(in[i]) * scale;
        found |= !((bits_of(out[i]) & 0x7FFFFFFF) < 0x7F800000);
    }
    return found ? 0x7F800000 : 0;
}
#else
int has_fp16(void) { return 0; }
void take_fp16(float *left, int64_t n, float up, float down, uint16_t *out) { (void)left, (void)n, (void)up, (void)down, (void)out; }
uint32_t give_fp16(const uint16_t *in, int64_t n, float scale, float *out) { (void)in, (void)n, (void)scale, (void)out; return 0; }
#endif
