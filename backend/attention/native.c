/* Paged attention on the CPU, flash style: one pass over the keys and values with a running softmax.

   Written with the compiler's vector types, so that one source serves AVX-512, AVX2, SSE and NEON; built on
   the machine it runs on (native.py). All arithmetic is float32, whatever the cache holds.

   A query's result depends on its own keys and on nothing else, bit for bit. Its keys are taken in tiles and
   chunks that begin at fixed positions; each chunk is one running softmax, and chunks are merged first to last.
   Who computes a chunk, on how many threads and beside which other queries changes no operation and no order.
   So decoding a token, prefilling it and recomputing it give the same bits. */

#include <stdlib.h>

#include <omp.h>

#include "vectors.h"

#define TILE 64 /* keys scored before their weights are used */
#define CHUNK 256 /* keys of one work item of a decode; a multiple of TILE */
#define AHEAD 8 /* keys between the one in use and the one asked for from memory */
#define MAX_WIDTH 512 /* floats of one head, padding included */

/* One call; native.py holds the same fields in the same order. */
struct call {
    const void *query;      /* [tokens, heads, dim] */
    const void *keys;       /* [blocks, block_size, kv_heads, dim] */
    const void *values;     /* the same */
    void *out;              /* [tokens, heads, dim], float32 or bfloat16 */
    const int32_t *blocks;  /* block tables: one per token (decode) or one for all (prefill) */
    const int32_t *lengths; /* keys that each token sees (decode); unused in a prefill */
    const float *sinks;     /* [heads] or NULL */
    int64_t tokens, heads, kv_heads, dim, block_size, table_width;
    int64_t start;  /* position of the first token (prefill) */
    int64_t window; /* how many of the last keys are seen; 0: all */
    int64_t dtype, out_dtype, threads;
    float scale, softcap;
};

/* Queries that share their keys: `tokens` tokens from `first`, with the groups of some key-value heads. */
struct tile {
    const int32_t *table;
    int64_t first, tokens, head, heads;
};

/* A running softmax of `queries` queries over one chunk: maxima, weights' sums, weighted sums of values. */
struct state {
    float *max, *sum, *values;
};

static inline struct state part_of(struct state state, int64_t query, int64_t width) {
    return (struct state){state.max + query, state.sum + query, state.values + query * width};
}

/* Room for one thread. */
struct scratch {
    float rows[LANES * MAX_WIDTH];
    const float *pointers[LANES];
    int64_t slots[TILE + AHEAD + LANES];
    float *query, *scores;
    int64_t *low, *high;
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline float higher(float a, float b) { return a > b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t width_of(const struct call *call) { return (call->dim + LANES - 1) / LANES * LANES; }
static inline int64_t group_of(const struct call *call) { return call->heads / call->kv_heads; }

/* Where the keys of a tile from position `first` lie in the cache, and some after them; the last is repeated. */
static void find_slots(const struct call *call, const int32_t *table, int64_t first, int64_t end, int64_t *slots) {
    int64_t block = first / call->block_size, offset = first % call->block_size;
    for (int64_t i = 0; i < TILE + AHEAD; i++) {
        slots[i] = first + i < end ? table[block] * call->block_size + offset : slots[i - 1];
        if (first + i < end && ++offset == call->block_size) {
            offset = 0;
            block++;
        }
    }
}

/* Asks for one stored row, so that it is in the cache when its turn comes. */
static hot void fetch(const struct call *call, const void *cache, int64_t slot, int64_t head) {
    int64_t bytes = call->dim * (call->dtype == FLOAT32 ? 4 : 2);
    const char *row = (const char *)cache + (slot * call->kv_heads + head) * bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 3);
}

/* Up to LANES stored rows of one head as float32; those beyond `count` repeat the last. */
static hot const float *const *stored_rows(const struct call *call, const void *cache, const int64_t *slots,
                                              int64_t count, int64_t head, struct scratch *scratch) {
    int64_t width = width_of(call);
    int direct = call->dtype == FLOAT32 && width == call->dim;
    for (int64_t j = 0; j < LANES; j++) {
        if (j >= count) {
            scratch->pointers[j] = scratch->pointers[count - 1];
            continue;
        }
        fetch(call, cache, slots[j + AHEAD], head);
        int64_t offset = (slots[j] * call->kv_heads + head) * call->dim;
        scratch->pointers[j] = direct ? (const float *)cache + offset : scratch->rows + j * width;
        if (!direct) widen(cache, offset, call->dim, call->dtype, scratch->rows + j * width);
    }
    return scratch->pointers;
}

/* Bounds a query's scores of TILE keys from position `first`; -inf where it may not look. */
static inline void mask(const struct call *call, int64_t low, int64_t high, float *scores) {
    ivec lane;
    for (int j = 0; j < LANES; j++) lane[j] = j;
    for (int sub = 0; sub < TILE; sub += LANES) {
        vec bounded = load(scores + sub);
        if (call->softcap > 0.0f) bounded = hyperbolic_tangent(bounded / call->softcap) * call->softcap;
        ivec seen = (lane + sub >= (int32_t)low) & (lane + sub < (int32_t)high);
        store(scores + sub, choose(seen, bounded, all(-INFINITY)));
    }
}

static inline float largest(const float *scores) {
    vec max = load(scores);
    for (int sub = LANES; sub < TILE; sub += LANES) {
        vec other = load(scores + sub);
        max = choose(other > max, other, max);
    }
    float result = max[0];
    for (int j = 1; j < LANES; j++) result = max[j] > result ? max[j] : result;
    return result;
}

static inline float total(vec value) {
    float result = value[0];
    for (int j = 1; j < LANES; j++) result += value[j];
    return result;
}

/* Scores become weights relative to the new maximum; what was summed before is scaled down to it. */
static void weigh(int64_t width, struct state state, float *scores) {
    float before = *state.max, now = higher(before, largest(scores));
    if (now == -INFINITY) {
        memset(scores, 0, TILE * sizeof *scores);
        return;
    }
    vec sum = all(0.0f);
    for (int sub = 0; sub < TILE; sub += LANES) {
        vec weights = exponential(load(scores + sub) - now);
        store(scores + sub, weights);
        sum += weights;
    }
    float shrink = before == now ? 1.0f : expf(before - now);
    *state.max = now;
    *state.sum = *state.sum * shrink + total(sum);
    if (shrink != 1.0f)
        for (int64_t at = 0; at < width; at += LANES)
            store(state.values + at, load(state.values + at) * shrink);
}

/* Adds `count` weighted rows to one query's sum, four vectors at a time. */
static hot void add_rows(const float *weights, const float *const *rows, int64_t count, int64_t width, float *sum) {
    int64_t at = 0;
    for (; at + 4 * LANES <= width; at += 4 * LANES) {
        vec a = load(sum + at), b = load(sum + at + LANES), c = load(sum + at + 2 * LANES),
            d = load(sum + at + 3 * LANES);
        for (int64_t j = 0; j < count; j++) {
            const float *row = rows[j] + at;
            vec weight = all(weights[j]);
            a += weight * load(row);
            b += weight * load(row + LANES);
            c += weight * load(row + 2 * LANES);
            d += weight * load(row + 3 * LANES);
        }
        store(sum + at, a);
        store(sum + at + LANES, b);
        store(sum + at + 2 * LANES, c);
        store(sum + at + 3 * LANES, d);
    }
    for (; at < width; at += LANES) {
        vec a = load(sum + at);
        for (int64_t j = 0; j < count; j++) a += weights[j] * load(rows[j] + at);
        store(sum + at, a);
    }
}

/* Widened and scaled queries of the tile, those of a key-value head together, and which positions each sees. */
static void prepare(const struct call *call, struct tile tile, struct scratch *scratch) {
    int64_t group = group_of(call), width = width_of(call), queries = tile.tokens * group;
    for (int64_t i = 0; i < queries; i++) {
        int64_t token = tile.first + i / group, length = call->lengths ? call->lengths[token] : call->start + token + 1;
        scratch->high[i] = length;
        scratch->low[i] = call->window ? larger(0, length - call->window) : 0;
    }
    for (int64_t i = 0; i < tile.heads * queries; i++) {
        int64_t token = tile.first + i % queries / group, head = (tile.head + i / queries) * group + i % group;
        float *query = scratch->query + i * width;
        widen(call->query, (token * call->heads + head) * call->dim, call->dim, call->dtype, query);
        for (int64_t at = 0; at < width; at += LANES) store(query + at, load(query + at) * call->scale);
    }
}

/* Scores of a tile's keys, taken as they lie in the cache: a few keys of every head, then the next few. */
static hot void score(const struct call *call, struct tile tile, int64_t count, struct scratch *scratch) {
    int64_t queries = tile.tokens * group_of(call), width = width_of(call);
    for (int64_t sub = 0; sub < count; sub += LANES)
        for (int64_t h = 0; h < tile.heads; h++) {
            stored_rows(call, call->keys, scratch->slots + sub, smaller(LANES, count - sub), tile.head + h, scratch);
            for (int64_t i = h * queries; i < (h + 1) * queries; i++)
                store(scratch->scores + i * TILE + sub,
                      products(scratch->query + i * width, scratch->pointers, width));
        }
}

/* Adds the values of a tile's keys `unseen` .. `count` - 1 by their weights. */
static hot void sum_values(const struct call *call, struct tile tile, int64_t unseen, int64_t count,
                       struct scratch *scratch, struct state state) {
    int64_t queries = tile.tokens * group_of(call), width = width_of(call);
    for (int64_t sub = unseen; sub < count; sub += LANES)
        for (int64_t h = 0; h < tile.heads; h++) {
            int64_t rows = smaller(LANES, count - sub);
            stored_rows(call, call->values, scratch->slots + sub, rows, tile.head + h, scratch);
            for (int64_t i = h * queries; i < (h + 1) * queries; i++)
                add_rows(scratch->scores + i * TILE + sub, scratch->pointers, rows, width, state.values + i * width);
        }
}

/* One chunk of keys for one tile of queries. */
static hot void attend_shape(const struct call *call, struct tile tile, int64_t chunk, struct scratch *scratch,
                             struct state state) {
    int64_t queries = tile.tokens * group_of(call), all_queries = queries * tile.heads, width = width_of(call);
    int64_t begin = larger(chunk * CHUNK, scratch->low[0] / TILE * TILE);
    int64_t end = smaller((chunk + 1) * CHUNK, scratch->high[queries - 1]);
    for (int64_t i = 0; i < all_queries; i++) state.max[i] = -INFINITY;
    memset(state.sum, 0, all_queries * sizeof(float));
    memset(state.values, 0, all_queries * width * sizeof(float));
    for (int64_t first = begin; first < end; first += TILE) {
        int64_t count = smaller(TILE, end - first);
        find_slots(call, tile.table, first, end, scratch->slots);
        score(call, tile, count, scratch);
        for (int64_t i = 0; i < all_queries; i++) {
            int64_t low = larger(0, scratch->low[i % queries] - first);
            mask(call, low, larger(0, smaller(TILE, scratch->high[i % queries] - first)), scratch->scores + i * TILE);
            weigh(width, part_of(state, i, width), scratch->scores + i * TILE);
        }
        sum_values(call, tile, larger(0, scratch->low[0] - first), count, scratch, state);
    }
}

/* As attend_shape, with head width and type as constants for the compiler where they are usual ones. */
static void attend(const struct call *call, struct tile tile, int64_t chunk, struct scratch *scratch,
                   struct state state) {
    struct call fixed = *call;
#define SHAPE(width, type)                                      \
    if (call->dim == (width) && call->dtype == (type)) {        \
        fixed.dim = (width);                                    \
        fixed.dtype = (type);                                   \
        attend_shape(&fixed, tile, chunk, scratch, state);      \
        return;                                                 \
    }
    SHAPE(64, FLOAT32)
    SHAPE(64, BFLOAT16)
    SHAPE(128, FLOAT32)
    SHAPE(128, BFLOAT16)
    attend_shape(&fixed, tile, chunk, scratch, state);
}

/* Merges a later chunk of one query into what earlier chunks gave. */
static void merge(struct state sum, struct state part, int64_t width) {
    float now = higher(*sum.max, *part.max);
    if (now == -INFINITY) return;
    float old_share = expf(*sum.max - now), new_share = expf(*part.max - now);
    *sum.max = now;
    *sum.sum = *sum.sum * old_share + *part.sum * new_share;
    for (int64_t at = 0; at < width; at += LANES)
        store(sum.values + at, load(sum.values + at) * old_share + load(part.values + at) * new_share);
}

/* Divides one query's sum by its weights, the sink's included, and stores it. */
static void finish(const struct call *call, int64_t token, int64_t head, struct state state) {
    float sum = *state.sum;
    if (call->sinks) {
        float now = higher(*state.max, call->sinks[head]), shrink = expf(*state.max - now);
        sum = (sum * shrink + expf(call->sinks[head] - now)) / shrink;
    }
    int64_t to = (token * call->heads + head) * call->dim;
    for (int64_t at = 0; at < call->dim; at++) narrow(state.values[at] / sum, call->out, to + at, call->out_dtype);
}

static int make_scratch(const struct call *call, int64_t tokens, int64_t heads, struct scratch **scratch) {
    int64_t width = width_of(call), queries = tokens * group_of(call);
    size_t floats = queries * heads * (width + TILE) * sizeof(float), limits = 2 * queries * sizeof(int64_t);
    *scratch = malloc(sizeof **scratch + limits + floats);
    if (!*scratch) return 0;
    (*scratch)->low = (int64_t *)(*scratch + 1);
    (*scratch)->high = (*scratch)->low + queries;
    (*scratch)->query = (float *)((*scratch)->high + queries);
    (*scratch)->scores = (*scratch)->query + queries * heads * width;
    return 1;
}

static int make_state(int64_t queries, int64_t width, struct state *state) {
    state->max = malloc(queries * (width + 2) * sizeof(float));
    if (!state->max) return 0;
    state->sum = state->max + queries;
    state->values = state->sum + queries;
    return 1;
}

static int64_t first_chunk(const struct call *call, int64_t length) {
    return call->window ? larger(0, length - call->window) / CHUNK : 0;
}

static int64_t chunks_until(int64_t length) { return (length + CHUNK - 1) / CHUNK; }

/* The decode's work items, a chunk each: `begins[row]` is the first of a row. Returns how many there are. */
static int64_t list_chunks(const struct call *call, int64_t *begins) {
    int64_t chunks = 0;
    for (int64_t row = 0; row < call->tokens; row++) {
        begins[row] = chunks;
        chunks += chunks_until(call->lengths[row]) - first_chunk(call, call->lengths[row]);
    }
    begins[call->tokens] = chunks;
    return chunks;
}

static int64_t row_of(const int64_t *begins, int64_t rows, int64_t chunk) {
    int64_t low = 0, high = rows;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (begins[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}

/* Merges the chunks of one row and key-value head, first to last. */
static void gather_row(const struct call *call, const int64_t *begins, int64_t row, int64_t head, struct state parts) {
    int64_t group = group_of(call), width = width_of(call);
    for (int64_t i = 0; i < group; i++) {
        struct state sum = part_of(parts, (begins[row] * call->kv_heads + head) * group + i, width);
        for (int64_t chunk = begins[row] + 1; chunk < begins[row + 1]; chunk++) {
            struct state part = part_of(parts, (chunk * call->kv_heads + head) * group + i, width);
            merge(sum, part, width);
        }
        finish(call, row, head * group + i, sum);
    }
}

static int decode_chunks(const struct call *call, const int64_t *begins, int64_t chunks, struct state parts) {
    int64_t group = group_of(call), width = width_of(call);
    int64_t heads = chunks >= 4 * call->threads ? call->kv_heads : 1, shares = call->kv_heads / heads;
    int failed = 0;
#pragma omp parallel num_threads(call->threads) reduction(| : failed)
    {
        struct scratch *scratch;
        int ready = make_scratch(call, 1, heads, &scratch);
        failed = !ready;
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < chunks * shares; item++) {
            int64_t chunk = item / shares, head = item % shares, row = row_of(begins, call->tokens, chunk);
            struct tile tile = {call->blocks + row * call->table_width, row, 1, head, heads};
            if (!ready) continue;
            prepare(call, tile, scratch);
            attend(call, tile, chunk - begins[row] + first_chunk(call, call->lengths[row]), scratch,
                   part_of(parts, (chunk * call->kv_heads + head) * group, width));
        }
#pragma omp for schedule(static)
        for (int64_t pair = 0; pair < call->tokens * call->kv_heads; pair++)
            gather_row(call, begins, pair / call->kv_heads, pair % call->kv_heads, parts);
        free(scratch);
    }
    return failed;
}

/* One query token a row, each with its own blocks and length. Returns 0, or 1 when memory ran out. */
int decode(const struct call *call) {
    int64_t *begins = malloc((call->tokens + 1) * sizeof *begins);
    if (!begins) return 1;
    int64_t chunks = list_chunks(call, begins);
    struct state parts;
    int failed = !make_state(chunks * call->heads, width_of(call), &parts);
    if (!failed) {
        failed = decode_chunks(call, begins, chunks, parts);
        free(parts.max);
    }
    free(begins);
    return failed;
}

/* All chunks of one tile of a prefill, first to last. */
static void prefill_tile(const struct call *call, struct tile tile, struct scratch *scratch, struct state sum,
                         struct state part) {
    int64_t group = group_of(call), queries = tile.tokens * group, width = width_of(call);
    prepare(call, tile, scratch);
    int64_t chunk = first_chunk(call, scratch->high[0]), end = chunks_until(scratch->high[queries - 1]);
    attend(call, tile, chunk, scratch, sum);
    while (++chunk < end) {
        attend(call, tile, chunk, scratch, part);
        for (int64_t i = 0; i < queries; i++)
            merge(part_of(sum, i, width), part_of(part, i, width), width);
    }
    for (int64_t i = 0; i < queries; i++)
        finish(call, tile.first + i / group, tile.head * group + i % group, part_of(sum, i, width));
}

/* Consecutive tokens of one request, from position `start`. Returns 0, or 1 when memory ran out. */
int prefill(const struct call *call) {
    int64_t group = group_of(call), width = width_of(call);
    int64_t tokens = larger(1, 32 / group), tiles = (call->tokens + tokens - 1) / tokens;
    int failed = 0;
#pragma omp parallel num_threads(call->threads) reduction(| : failed)
    {
        struct scratch *scratch = NULL;
        struct state sum = {0}, part = {0};
        int ready = make_scratch(call, tokens, 1, &scratch) && make_state(tokens * group, width, &sum) &&
                    make_state(tokens * group, width, &part);
        failed = !ready;
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < tiles * call->kv_heads; item++) {
            int64_t first = (tiles - 1 - item / call->kv_heads) * tokens; /* the longest first */
            struct tile tile = {call->blocks, first, smaller(tokens, call->tokens - first), item % call->kv_heads, 1};
            if (ready) prefill_tile(call, tile, scratch, sum, part);
        }
        free(scratch);
        free(sum.max);
        free(part.max);
    }
    return failed;
}

/* What the kernel was built for. */
const char *isa(void) { return ISA; }
