/* Arithmetic that says how large its results are, while it writes them: see ../../measure.py and values.c. */
#include "kernels.h"

/* out = x · weight, or out = x + y; both give the bits of the largest |out|. */
FOR_EACH_CPU uint32_t scale_to(const float *x, int64_t n, float weight, float *out)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        float scaled = x[i] * weight;
        most = larger(most, bits_of(scaled) & 0x7FFFFFFF);
        out[i] = scaled;
    }
    return most;
}

FOR_EACH_CPU uint32_t sum_to(const float *x, const float *y, int64_t n, float *out)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        float sum = x[i] + y[i];
        most = larger(most, bits_of(sum) & 0x7FFFFFFF);
        out[i] = sum;
    }
    return most;
}
