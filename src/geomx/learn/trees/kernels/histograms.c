/* Histograms of whole numbers: the same bits as NumPy's sums, in whatever order. */

#include <stdint.h>

#ifndef SOURCE
#define SOURCE 0
#endif

uint64_t source(void) { return SOURCE; }

/* codes: [., features]; values: [., channels]; rows: which; sums: [features, bins, channels], which are added to. */
void add_histograms(const uint8_t *codes, const int32_t *values, const int64_t *rows, int64_t count, int64_t features,
                    int64_t bins, int64_t channels, int64_t *sums)
{
    const int64_t step = bins * channels;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *code = codes + rows[i] * features;
        const int32_t *value = values + rows[i] * channels;
        int64_t *sum = sums;
        if (channels == 2) {
            const int64_t first = value[0], second = value[1];
            for (int64_t f = 0; f < features; f++, sum += step) {
                int64_t *at = sum + 2 * (int64_t)code[f];
                at[0] += first;
                at[1] += second;
            }
        } else {
            for (int64_t f = 0; f < features; f++, sum += step) {
                int64_t *at = sum + channels * (int64_t)code[f];
                for (int64_t c = 0; c < channels; c++)
                    at[c] += value[c];
            }
        }
    }
}
