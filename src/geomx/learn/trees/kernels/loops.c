/* The inner loops of trees: the same bits as NumPy's in `loops.py`. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SOURCE
#define SOURCE 0
#endif

#define AHEAD 16 /* rows to be read soon */
#define ROUNDING 1e-12 /* of a node's score: what gains less gains nothing */

uint64_t source(void) { return SOURCE; }

static inline int64_t soon(const int32_t *rows, int64_t i, int64_t count) { return rows[i + AHEAD < count ? i + AHEAD : i]; }

/* codes: [., stride], of which `features` count; values: [., channels]; rows: which; sums: [features, bins, channels],
   which are added to. */
void add_histograms(const uint8_t *codes, int64_t stride, int64_t features, const int32_t *values, int64_t channels,
                    const int32_t *rows, int64_t count, int64_t bins, int64_t *sums)
{
    const int64_t step = bins * channels;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *code = codes + rows[i] * stride;
        const int32_t *value = values + rows[i] * channels;
        int64_t *sum = sums;
        __builtin_prefetch(codes + soon(rows, i, count) * stride);
        for (int64_t f = 0; f < features; f++, sum += step) {
            int64_t *at = sum + channels * (int64_t)code[f];
            for (int64_t c = 0; c < channels; c++)
                at[c] += value[c];
        }
    }
}

/* The same of two channels below 2^bits, which are added as one number: 32 bits each, for as many rows as fit. */
int add_pairs(const uint8_t *codes, int64_t stride, int64_t features, const int32_t *values, int64_t bits,
              const int32_t *rows, int64_t count, int64_t bins, int64_t *sums)
{
    const int64_t cells = features * bins, most = (int64_t)1 << (30 - bits);
    int64_t *both = calloc((size_t)cells, sizeof *both);
    if (!both)
        return -1;
    for (int64_t start = 0; start < count; start += most) {
        const int64_t stop = start + most < count ? start + most : count;
        for (int64_t i = start; i < stop; i++) {
            const uint8_t *code = codes + rows[i] * stride;
            const int32_t *value = values + 2 * (int64_t)rows[i];
            const int64_t pair = (int64_t)((uint64_t)(int64_t)value[0] << 32) + value[1];
            int64_t *sum = both;
            __builtin_prefetch(codes + soon(rows, i, count) * stride);
            __builtin_prefetch(values + 2 * soon(rows, i, count));
            for (int64_t f = 0; f < features; f++, sum += bins)
                sum[code[f]] += pair;
        }
        for (int64_t k = 0; k < cells; k++) {
            const int32_t second = (int32_t)both[k];
            sums[2 * k] += (both[k] - second) >> 32;
            sums[2 * k + 1] += second;
        }
        memset(both, 0, (size_t)cells * sizeof *both);
    }
    free(both);
    return 0;
}

/* Rows whose code is at most `code`, or missing where these go left, to `left`; the others to `right`. How many are
   left. Both have room for all, and one more. */
int64_t part_rows(const uint8_t *codes, const int32_t *rows, int64_t count, int64_t code,
                  int64_t missing, int missing_left, int32_t *left, int32_t *right)
{
    int64_t lefts = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t own = codes[rows[i]];
        const int goes_left = (own <= code) | ((own == missing) & missing_left);
        left[lefts] = rows[i];
        right[i - lefts] = rows[i];
        lefts += goes_left;
    }
    return lefts;
}

/* Adds a value to the numbers of some rows, each `stride` behind the one before. */
void add_to_rows(double *numbers, int64_t stride, const int32_t *rows, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++)
        numbers[rows[i] * stride] += value;
}

static inline double soft(double value, double sparse)
{
    const double left = fabs(value) - sparse;
    return sparse == 0.0 ? value : left > 0.0 ? copysign(left, value) : 0.0;
}

struct terms {
    double shrinks, sparse, least_gain, least_weight, least_rows, count;
};

static double score(const int64_t *sums, int64_t channels, const double *units, const struct terms *terms, double *weight)
{
    double top = 0.0;
    for (int64_t c = 0; c + 1 < channels; c++) {
        const double pull = soft((double)sums[c] * units[c], terms->sparse);
        top += pull * pull;
    }
    *weight = (double)sums[channels - 1] * units[channels - 1];
    const double shrunk = *weight + terms->shrinks;
    return top / (shrunk > 1e-300 ? shrunk : 1e-300);
}

/* The cut that gains most. sums: [features, bins, channels], of which the last bin is what is missing; places: behind
   how many codes each feature may be cut; all_of, left, right: [channels], room.
   found: feature, code, whether missing rows go left. The gain, or 0. */
double best_cut(const int64_t *sums, int64_t features, int64_t bins, int64_t channels, const int64_t *places,
                const double *units, const struct terms *terms, int64_t *all_of, int64_t *left, int64_t *right,
                int64_t *found)
{
    double best = 0.0, weight, other;
    const size_t size = (size_t)channels * sizeof *left;
    memset(all_of, 0, size);
    for (int64_t b = 0; b < bins; b++)
        for (int64_t c = 0; c < channels; c++)
            all_of[c] += sums[b * channels + c];
    const double whole = score(all_of, channels, units, terms, &weight);
    const double rows = terms->least_rows * weight;
    for (int missing_left = 0; missing_left < 2; missing_left++)
        for (int64_t f = 0; f < features; f++) {
            const int64_t *own = sums + f * bins * channels, *missing = own + (bins - 1) * channels;
            int is_there = 0;
            for (int64_t c = 0; c < channels; c++)
                is_there |= missing[c] != 0;
            if (missing_left && !is_there)
                continue;
            if (missing_left)
                memcpy(left, missing, size);
            else
                memset(left, 0, size);
            for (int64_t b = 0; b < places[f]; b++) {
                for (int64_t c = 0; c < channels; c++) {
                    left[c] += own[b * channels + c];
                    right[c] = all_of[c] - left[c];
                }
                const double gain = score(left, channels, units, terms, &weight)
                                    + score(right, channels, units, terms, &other) - whole - terms->least_gain;
                const double lighter = weight < other ? weight : other;
                if (gain > best && gain > ROUNDING * whole && lighter >= terms->least_weight && lighter > 0.0
                    && (terms->least_rows == 0.0 || lighter * terms->count >= rows)) {
                    best = gain;
                    found[0] = f, found[1] = b, found[2] = missing_left;
                }
            }
        }
    return best;
}
