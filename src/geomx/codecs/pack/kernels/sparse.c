/* Which elements a sparse form has, and how their indices are packed; see values.c for the rules. */
#include "kernels.h"

/* The `rank`-th largest of |x[start]|, |x[start + stride]|, ...: 11, 10 and 10 bits at a time, from the highest. */
float kth_largest(const float *x, int64_t n, int64_t start, int64_t stride, int64_t rank)
{
    static const int shifts[3] = {20, 10, 0}, widths[3] = {11, 10, 10};
    uint32_t found = 0, mask = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t counts[2048] = {0};
        int shift = shifts[pass];
        uint32_t low = (1u << widths[pass]) - 1;
        for (int64_t i = start; i < n; i += stride) {
            uint32_t b = bits_of(x[i]) & 0x7FFFFFFF;
            if ((b & mask) == found)
                counts[b >> shift & low]++;
        }
        uint32_t digit = low;
        while (rank > counts[digit]) {
            rank -= counts[digit];
            digit--;
        }
        found |= digit << shift;
        mask |= low << shift;
    }
    return float_of(found);
}

/* Which of 32 numbers have |x| >= limit, as bits: the first is the lowest. */
INLINE uint32_t marks_of(const float *x, int64_t m, uint32_t limit)
{
    uint32_t marks = 0;
    for (int64_t i = 0; i < m; i++)
        marks |= (uint32_t)((bits_of(x[i]) & 0x7FFFFFFF) >= limit) << i;
    return marks;
}

#if defined(__x86_64__)
/* The same for 32 numbers at once. */
__attribute__((target("avx2"))) static inline uint32_t marks_of_32(const float *x, uint32_t limit)
{
    __m256i below = _mm256_set1_epi32((int)(limit - 1)), size = _mm256_set1_epi32(0x7FFFFFFF);
    uint32_t marks = 0;
    for (int k = 0; k < 4; k++) {
        __m256i eight = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + 8 * k)), size);
        __m256 above = _mm256_castsi256_ps(_mm256_cmpgt_epi32(eight, below));
        marks |= (uint32_t)_mm256_movemask_ps(above) << 8 * k;
    }
    return marks;
}

__attribute__((target("avx2"))) static int64_t at_least_avx2(const float *x, int64_t n, uint32_t limit, int64_t *out,
                                                             int64_t room)
{
    int64_t count = 0;
    for (int64_t at = 0; at < n; at += 32) {
        uint32_t marks = n - at >= 32 ? marks_of_32(x + at, limit) : marks_of(x + at, n - at, limit);
        for (; marks; marks &= marks - 1) {
            if (count == room)
                return room + 1;
            out[count++] = at + __builtin_ctz(marks);
        }
    }
    return count;
}
#endif

/* left + values at start, start + stride, ...; with a velocity, left + (momentum · velocity + values). */
void sample_sums(const float *left, const float *velocity, const float *values, float momentum, int64_t n,
                 int64_t start, int64_t stride, float *out)
{
    for (int64_t i = start; i < n; i += stride)
        *out++ = left[i] + (velocity ? momentum * velocity[i] + values[i] : values[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int64_t add_at_least_avx2(float *left, float *velocity, const float *values,
                                                                 float momentum, int64_t whole, uint32_t limit,
                                                                 int64_t *out, int64_t room, uint32_t *largest)
{
    __m256i below = _mm256_set1_epi32((int)(limit - 1)), size = _mm256_set1_epi32(0x7FFFFFFF);
    __m256 kept = _mm256_set1_ps(momentum);
    __m256i most = _mm256_setzero_si256();
    int64_t count = 0;
    for (int64_t at = 0; at < whole; at += 32) {
        uint32_t marks = 0;
        for (int k = 0; k < 4; k++) {
            __m256 x = _mm256_loadu_ps(values + at + 8 * k);
            most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(x), size));
            if (velocity) {
                x = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(velocity + at + 8 * k), kept), x);
                _mm256_storeu_ps(velocity + at + 8 * k, x);
            }
            __m256 sum = _mm256_add_ps(_mm256_loadu_ps(left + at + 8 * k), x);
            _mm256_storeu_ps(left + at + 8 * k, sum);
            __m256i above = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(sum), size), below);
            marks |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(above)) << 8 * k;
        }
        for (; marks && count <= room; marks &= marks - 1) {
            if (count < room)
                out[count] = at + __builtin_ctz(marks);
            count++;
        }
    }
    uint32_t each[8];
    _mm256_storeu_si256((__m256i *)each, most);
    for (int k = 0; k < 8; k++)
        *largest = larger(*largest, each[k]);
    return count;
}
#endif

/* left += values and, in the same pass, `at_least` of what comes of it; `largest`: the bits of the largest |values|.
 * With a velocity: velocity = momentum · velocity + values; left += velocity. */
int64_t add_at_least(float *left, float *velocity, const float *values, float momentum, int64_t n, float bound,
                     int64_t *out, int64_t room, uint32_t *largest)
{
    uint32_t limit = bits_of(bound) ? bits_of(bound) : 1;
    int64_t count = 0, at = 0;
    *largest = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        at = n / 32 * 32;
        count = add_at_least_avx2(left, velocity, values, momentum, at, limit, out, room, largest);
    }
#endif
    for (; at < n; at++) {
        *largest = larger(*largest, bits_of(values[at]) & 0x7FFFFFFF);
        if (velocity)
            velocity[at] = momentum * velocity[at] + values[at];
        left[at] += velocity ? velocity[at] : values[at];
        if ((bits_of(left[at]) & 0x7FFFFFFF) >= limit && count <= room) {
            if (count < room)
                out[count] = at;
            count++;
        }
    }
    return count;
}

/* Rising indices of |x| ≥ bound (of x ≠ 0 where bound is 0) into `out`; gives their number, or `room` + 1 where there
 * are more than `room`. */
int64_t at_least(const float *x, int64_t n, float bound, int64_t *out, int64_t room)
{
    uint32_t limit = bits_of(bound) ? bits_of(bound) : 1;
    int64_t count = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return at_least_avx2(x, n, limit, out, room);
#endif
    for (int64_t at = 0; at < n; at += 32) {
        for (uint32_t marks = marks_of(x + at, least(32, n - at), limit); marks; marks &= marks - 1) {
            if (count == room)
                return room + 1;
            out[count++] = at + __builtin_ctz(marks);
        }
    }
    return count;
}

void gather(const float *x, const int64_t *indices, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = x[indices[i]];
}

void scatter(float *x, const int64_t *indices, int64_t count, const float *in)
{
    for (int64_t i = 0; i < count; i++)
        x[indices[i]] = in[i];
}

/* `scatter` of rising indices into zeros, a tile at a time. */
void spread(float *x, int64_t n, const int64_t *indices, int64_t count, const float *in)
{
    int64_t i = 0;
    for (int64_t at = 0; at < n; at += TILE) {
        int64_t end = least(at + TILE, n);
        memset(x + at, 0, sizeof *x * (size_t)(end - at));
        for (; i < count && indices[i] < end; i++)
            x[indices[i]] = in[i];
    }
}

/* Bits of the unary part at each of the Rice parameters first, first + 1, ... */
FOR_EACH_CPU void unary_bits(const int64_t *indices, int64_t count, int first, int many, int64_t *sums)
{
    for (int k = 0; k < many; k++) {
        uint64_t sum = count ? (uint64_t)indices[0] >> (first + k) : 0;
        for (int64_t i = 1; i < count; i++)
            sum += (uint64_t)(indices[i] - indices[i - 1] - 1) >> (first + k);
        sums[k] = count + (int64_t)sum;
    }
}

/* `stops` is zero before. */
void pack_rice(const int64_t *indices, int64_t count, int rice, uint8_t *low, uint8_t *stops)
{
    int64_t before = -1, place = -1;
    uint64_t held = 0;
    int bits = 0; /* of `held`, fewer than 32 between numbers */
    for (int64_t i = 0; i < count; i++) {
        uint64_t gap = (uint64_t)(indices[i] - before - 1);
        before = indices[i];
        place += (int64_t)(gap >> rice) + 1;
        stops[place / 8] |= (uint8_t)(1 << place % 8);
        held |= (gap & ((1ull << rice) - 1)) << bits;
        bits += rice;
        if (bits >= 32) {
            memcpy(low, &held, 4);
            low += 4, bits -= 32, held >>= 32;
        }
    }
    if (bits)
        memcpy(low, &held, (size_t)(bits + 7) / 8);
}

int unpack_rice(const uint8_t *low, const uint8_t *stops, int64_t count, int64_t elements, int rice, int64_t unary,
                int64_t *indices)
{
    int64_t end = count * rice, wide = end / 8 - 8, found = 0, before = -1, last = -1;
    uint64_t mask = (1ull << rice) - 1;
    uint8_t rest[16] = {0}; /* the low bits' last bytes, behind which a word can be read */
    int64_t held = wide < 0 ? 0 : wide;
    if (end)
        memcpy(rest, low + held, (size_t)((end + 7) / 8 - held));
    if ((end % 8 && low[end / 8] >> end % 8) || (unary % 8 && stops[unary / 8] >> unary % 8))
        return BAD_PADDING;
    for (int64_t byte = 0, bytes = (unary + 7) / 8; byte < bytes; byte += 8) {
        uint64_t some = 0;
        if (byte + 8 <= bytes)
            some = word_at(stops + byte);
        else
            memcpy(&some, stops + byte, (size_t)(bytes - byte));
        for (; some; some &= some - 1) {
            int64_t place = 8 * byte + __builtin_ctzll(some), at = found * rice / 8;
            if (found == count)
                return BAD_COUNT;
            uint64_t field = word_at(at <= wide ? low + at : rest + (at - held)) >> (found * rice % 8) & mask;
            before += (int64_t)((uint64_t)(place - last - 1) << rice | field) + 1;
            if (before >= elements)
                return BAD_INDEX;
            last = place;
            indices[found++] = before;
        }
    }
    return found == count && last == unary - 1 ? FINE : BAD_COUNT;
}
