/* What stands between a decoder layer's products, each in one pass over its data: adding and normalising, rotary
   embedding in place, and the gate of the feed-forward. float32. Rows are computed alone, so a row's result does
   not depend on the rows beside it. */

#include <omp.h>

#include "vectors.h"

#define WORTH_SHARING 32768 /* floats below which waking the other threads takes longer than the work */

static inline float total(const float *lanes) {
    float sum = 0.0f;
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

/* Adds a row to another, and returns the squares of the result, summed. */
static float add_row(float *row, const float *addend, int64_t width) {
    vec squares = all(0.0f);
    float lanes[LANES], rest = 0.0f;
    int64_t at = 0;
    for (; at + LANES <= width; at += LANES) {
        vec value = load(row + at) + load(addend + at);
        store(row + at, value);
        squares += value * value;
    }
    for (; at < width; at++) {
        row[at] += addend[at];
        rest += row[at] * row[at];
    }
    store(lanes, squares);
    return total(lanes) + rest;
}

/* hidden += addend, out = hidden / root mean square of its row * weight; [rows, width]. */
void add_norm(float *hidden, const float *addend, const float *weight, float *out, int64_t rows, int64_t width,
              float eps, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > WORTH_SHARING)
    for (int64_t row = 0; row < rows; row++) {
        float *from = hidden + row * width, *restrict to = out + row * width;
        float scale = 1.0f / sqrtf(add_row(from, addend + row * width, width) / width + eps);
        for (int64_t at = 0; at < width; at++) to[at] = from[at] * scale * weight[at];
    }
}

/* Rotates the first `heads` heads of rows that are `pitch` floats apart; cosines and sines: [rows, dim / 2]. */
void rotate(float *packed, const float *cosines, const float *sines, int64_t rows, int64_t heads, int64_t dim,
            int64_t pitch, int64_t threads) {
    int64_t half = dim / 2;
#pragma omp parallel for num_threads(threads) if (rows * heads * dim > WORTH_SHARING)
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict cosine = cosines + row * half, *restrict sine = sines + row * half;
        for (int64_t head = 0; head < heads; head++) {
            float *restrict first = packed + row * pitch + head * dim, *restrict second = first + half;
            for (int64_t i = 0; i < half; i++) {
                float a = first[i], b = second[i];
                first[i] = a * cosine[i] - b * sine[i];
                second[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}

/* x / (1 + e^-x), with the exponential of a negative number only. */
static inline vec silu(vec x) {
    ivec negative = x < 0.0f;
    vec e = exponential(choose(negative, x, -x));
    return x * choose(negative, e, all(1.0f)) / (1.0f + e);
}

/* silu(gate) * up; gate_up [rows, 2 * width] holds the gate's columns first; out [rows, width]. */
void gate(const float *gate_up, float *out, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for num_threads(threads) if (rows * width > WORTH_SHARING)
    for (int64_t row = 0; row < rows; row++) {
        const float *gates = gate_up + row * 2 * width, *ups = gates + width;
        int64_t at = 0;
        for (; at + LANES <= width; at += LANES)
            store(out + row * width + at, silu(load(gates + at)) * load(ups + at));
        for (; at < width; at++) out[row * width + at] = silu(all(gates[at]))[0] * ups[at];
    }
}
