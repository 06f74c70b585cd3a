/* x @ weight.T + bias in float32 with a weight packed once, for any number of rows.

   Every output is one sum over the inputs from first to last, so a row's result does not depend on the rows
   beside it, on the number of threads or on the blocks below, bit for bit. With few rows the weight is read from
   memory just once, in the order in which it is stored, and the next block is fetched while one is in use. */

#include <omp.h>

#include "vectors.h"

#define PANEL (2 * LANES) /* outputs computed together */
#define DEPTH 256         /* inputs of one block: a block of a panel stays in the first-level cache */
#define ROWS 6            /* rows computed together: as many sums as hide an addition's latency, and no spill */
#define BAND 96           /* rows of one work item: their inputs of one block stay in the second-level cache */
#define PITCH (DEPTH + 16) /* floats between copied rows: a power of two would put them all in one cache set */
#define LEAST_PANELS 4    /* of one work item, which copies its rows once for all of them */

/* One product; native_dense.py holds the same fields in the same order. */
struct product {
    const float *x;      /* [rows, inputs] */
    const float *packed; /* blocks of DEPTH inputs, of these panels, of these inputs, of these PANEL outputs */
    const float *bias;   /* [outputs] or NULL */
    float *out;          /* [rows, outputs] */
    int64_t rows, inputs, outputs, threads;
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t pieces(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

/* Floats that a packed weight takes. */
int64_t packed_floats(int64_t inputs, int64_t outputs) { return pieces(outputs, PANEL) * PANEL * inputs; }

static const float *block_of(const struct product *product, int64_t first, int64_t panel) {
    int64_t depth = smaller(DEPTH, product->inputs - first);
    return product->packed + pieces(product->outputs, PANEL) * PANEL * first + panel * PANEL * depth;
}

/* weight [outputs, inputs] in the order of `struct product`; outputs beyond the last are zero. */
void pack(const float *weight, float *packed, int64_t inputs, int64_t outputs) {
    struct product shape = {.packed = packed, .inputs = inputs, .outputs = outputs};
    for (int64_t first = 0; first < inputs; first += DEPTH)
        for (int64_t panel = 0; panel < pieces(outputs, PANEL); panel++) {
            float *block = (float *)block_of(&shape, first, panel);
            for (int64_t k = 0; k < smaller(DEPTH, inputs - first); k++)
                for (int64_t j = 0; j < PANEL; j++) {
                    int64_t output = panel * PANEL + j;
                    block[k * PANEL + j] = output < outputs ? weight[output * inputs + first + k] : 0.0f;
                }
        }
}

/* Adds the products of `count` rows with a block to sums [count, PANEL] that are `pitch` apart. */
static hot void add_products(int count, const float *x, const float *block, int64_t depth, float *sums,
                             int64_t pitch, const char *ahead, int64_t step) {
    vec low[ROWS], high[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        low[i] = load(sums + i * pitch);
        high[i] = load(sums + i * pitch + LANES);
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++) {
        vec first = load(block + k * PANEL), second = load(block + k * PANEL + LANES);
        __builtin_prefetch(ahead + k * step, 0, 3);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            vec input = all(x[i * PITCH + k]);
            low[i] += input * first;
            high[i] += input * second;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        store(sums + i * pitch, low[i]);
        store(sums + i * pitch + LANES, high[i]);
    }
}

static void add_rows(int64_t count, const float *x, const float *block, int64_t depth, float *sums,
                     int64_t pitch, const char *ahead, int64_t step) {
    switch (count) {
#define COUNT(n) case n: add_products(n, x, block, depth, sums, pitch, ahead, step); return;
        COUNT(1) COUNT(2) COUNT(3) COUNT(4) COUNT(5) COUNT(6)
    }
}

/* One panel of outputs of the rows [begin, end), for the block of inputs from `first`, copied to x. */
static void multiply(const struct product *product, const float *x, int64_t begin, int64_t end, int64_t first,
                     int64_t panel) {
    int64_t depth = smaller(DEPTH, product->inputs - first), at = panel * PANEL;
    int64_t width = smaller(PANEL, product->outputs - at), groups = pieces(end - begin, ROWS);
    const float *block = block_of(product, first, panel);
    const int64_t step = larger(1, 4 * PANEL / groups);
    for (int64_t group = 0; group < groups; group++) {
        int64_t row = begin + (end - begin) * group / groups, count = begin + (end - begin) * (group + 1) / groups - row;
        const char *ahead = (const char *)(block + depth * PANEL) + group * depth * step;
        float spare[ROWS * PANEL] = {0}, *out = product->out + row * product->outputs + at;
        float *sums = width == PANEL ? out : spare;
        int64_t pitch = width == PANEL ? product->outputs : PANEL;
        for (int64_t i = 0; i < count && (first == 0 || sums == spare); i++)
            for (int64_t j = 0; j < width; j++)
                sums[i * pitch + j] = first ? out[i * product->outputs + j] : product->bias ? product->bias[at + j] : 0.0f;
        add_rows(count, x + (row - begin) * PITCH, block, depth, sums, pitch, ahead, step);
        for (int64_t i = 0; i < count && sums == spare; i++)
            for (int64_t j = 0; j < width; j++) out[i * product->outputs + j] = spare[i * pitch + j];
    }
}

static void copy_rows(const struct product *product, int64_t begin, int64_t end, int64_t first, float *to) {
    int64_t depth = smaller(DEPTH, product->inputs - first);
    for (int64_t row = begin; row < end; row++)
        memcpy(to + (row - begin) * PITCH, product->x + row * product->inputs + first, depth * sizeof *to);
}

/* The whole product. */
void multiply_all(const struct product *product) {
    int64_t panels = pieces(product->outputs, PANEL), bands = pieces(product->rows, BAND);
    if (!bands) return;
    int64_t shares = smaller(pieces(panels, LEAST_PANELS), pieces(8 * product->threads, bands));
#pragma omp parallel for schedule(dynamic, 1) num_threads(product->threads)
    for (int64_t item = 0; item < bands * shares; item++) {
        int64_t band = item / shares, share = item % shares;
        int64_t begin = band * BAND, end = smaller(product->rows, begin + BAND);
        float x[BAND * PITCH];
        for (int64_t first = 0; first < product->inputs; first += DEPTH) {
            copy_rows(product, begin, end, first, x);
            for (int64_t panel = panels * share / shares; panel < panels * (share + 1) / shares; panel++)
                multiply(product, x, begin, end, first, panel);
        }
    }
}
