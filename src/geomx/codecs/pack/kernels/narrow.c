/* Whole numbers in as few bytes as they take: see narrow.py. */
#include "kernels.h"

enum { NARROW = 64 }; /* numbers of a block */

INLINE uint64_t folded(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

/* How many bytes `to` has then; there is room for the marks, a width a block, 8 bytes a number, and 8 more. */
int64_t pack_narrow(const int64_t *values, int64_t count, uint8_t *to)
{
    const int64_t marks = (count + 7) / 8;
    int64_t there = 0, place = 0;
    memset(to, 0, (size_t)marks);
    for (int64_t i = 0; i < count; i++) {
        const int is_there = values[i] != 0;
        to[i >> 3] |= (uint8_t)(is_there << (i & 7));
        there += is_there;
    }
    uint8_t *widths = to + marks, *at = widths + (there + NARROW - 1) / NARROW;
    while (place < count) {
        uint64_t block[NARROW], all = 0;
        int64_t some = 0;
        for (; place < count && some < NARROW; place++) {
            block[some] = folded(values[place]);
            all |= block[some];
            some += values[place] != 0;
        }
        if (!some)
            break;
        const int width = (71 - __builtin_clzll(all)) / 8;
        *widths++ = (uint8_t)width;
        for (int64_t i = 0; i < some; i++, at += width)
            memcpy(at, block + i, 8); /* what is too much is written over, or lies behind the end */
    }
    return at - to;
}

/* The way back; not FINE where the bytes are not as many as the marks and widths say. */
int unpack_narrow(const uint8_t *from, int64_t size, int64_t count, int64_t *values)
{
    const int64_t marks = (count + 7) / 8;
    int64_t there = 0, needed, done = 0;
    if (size < marks)
        return BAD_COUNT;
    if (count & 7 && from[marks - 1] >> (count & 7))
        return BAD_PADDING;
    for (int64_t i = 0; i < marks; i++)
        there += __builtin_popcount(from[i]);
    const int64_t blocks = (there + NARROW - 1) / NARROW;
    const uint8_t *widths = from + marks, *at = widths + blocks, *end = from + size;
    needed = marks + blocks;
    if (size < needed)
        return BAD_COUNT;
    for (int64_t i = 0; i < blocks; i++) {
        if (widths[i] < 1 || widths[i] > 8)
            return BAD_CODE;
        needed += widths[i] * least(NARROW, there - i * NARROW);
    }
    if (size != needed)
        return BAD_COUNT;
    for (int64_t i = 0; i < count; i++) {
        if (!(from[i >> 3] >> (i & 7) & 1)) {
            values[i] = 0;
            continue;
        }
        const int width = widths[done++ / NARROW];
        uint64_t folds;
        if (end - at >= 8)
            folds = word_at(at) & (~(uint64_t)0 >> (64 - 8 * width));
        else
            for (folds = 0, needed = 0; needed < width; needed++)
                folds |= (uint64_t)at[needed] << (8 * needed);
        at += width;
        values[i] = (int64_t)(folds >> 1) ^ -(int64_t)(folds & 1);
    }
    return FINE;
}
