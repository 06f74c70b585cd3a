/* Vectors of float32 in the compiler's own types: loading, widening, exponentials, sums across lanes. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define ISA "avx512"
#elif defined(__AVX2__)
#define LANES 8
#define ISA "avx2"
#else
#define LANES 4
#define ISA "portable"
#endif
#if LANES > 4
#include <immintrin.h>
#endif

#define hot inline __attribute__((always_inline))

enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t loose_halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline vec load(const float *from) { return *(const loose_vec *)from; }
static inline void store(float *to, vec value) { *(loose_vec *)to = value; }
static inline vec all(float value) { return value - (vec){0}; }
static inline vec choose(ivec condition, vec yes, vec no) {
    return (vec)((condition & (ivec)yes) | (~condition & (ivec)no));
}
static inline vec widen_bfloat16(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#elif LANES == 8
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#endif
    return (vec)(__builtin_convertvector(*(const loose_halves *)from, ivec) << 16);
}

static inline vec widen_float16(const uint16_t *from) {
#if LANES == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif LANES == 8 && defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    ivec bits = __builtin_convertvector(*(const loose_halves *)from, ivec);
    vec magnitude = (vec)((bits & 0x7fff) << 13) * 0x1p112f; /* moves the exponent, subnormals included */
    ivec infinite = (ivec)(magnitude >= 65536.0f) & 0x7f800000;
    return (vec)((ivec)magnitude | infinite | ((bits & 0x8000) << 16));
#endif
}

static inline float widen_one(const void *from, int64_t index, int64_t dtype) {
    if (dtype == FLOAT32) return ((const float *)from)[index];
    uint16_t halves[LANES] = {((const uint16_t *)from)[index]};
    return dtype == BFLOAT16 ? widen_bfloat16(halves)[0] : widen_float16(halves)[0];
}

/* `dim` numbers from element `offset`, as float32, with zeros up to the next whole vector. */
static hot void widen(const void *from, int64_t offset, int64_t dim, int64_t dtype, float *to) {
    int64_t at = 0;
    const uint16_t *halves = (const uint16_t *)from + offset;
    if (dtype == BFLOAT16)
        for (; at + LANES <= dim; at += LANES) store(to + at, widen_bfloat16(halves + at));
    else if (dtype == FLOAT16)
        for (; at + LANES <= dim; at += LANES) store(to + at, widen_float16(halves + at));
    else
        for (; at + LANES <= dim; at += LANES) store(to + at, load((const float *)from + offset + at));
    if (at == dim) return;
    store(to + at, all(0.0f));
    for (; at < dim; at++) to[at] = widen_one(from, offset + at, dtype);
}

static inline void narrow(float value, void *to, int64_t index, int64_t dtype) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == FLOAT32) {
        ((float *)to)[index] = value;
        return;
    }
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* to nearest, ties to even */
    ((uint16_t *)to)[index] = value != value ? 0x7fc0 : (uint16_t)rounded;
}

/* e^x for x <= 0, zero below -87.3. Polynomial of Cephes' expf (netlib.org/cephes), error below 2e-7. */
static inline vec exponential(vec x) {
    vec clamped = choose(x > -87.3f, x, all(-87.3f));
    vec shifted = clamped * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    vec whole = shifted - 12582912.0f;
    vec r = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    ivec power = ((ivec)shifted - 0x4b400000 + 127) << 23;
    return choose(x > -87.3f, p * (vec)power, all(0.0f));
}

static inline vec hyperbolic_tangent(vec x) {
    ivec negative = x < 0.0f;
    vec e = exponential(choose(negative, x, -x) * 2.0f);
    vec positive = (1.0f - e) / (1.0f + e);
    return choose(negative, -positive, positive);
}

#define PICK(i, h) ((i) & (h) ? LANES + (i) : (i))
#define CROSS(i, h) (((i) & (h) ? LANES : 0) + ((i) ^ (h)))
#define FOUR(f, i, h) f(i, h), f(i + 1, h), f(i + 2, h), f(i + 3, h)
#if LANES == 16
#define EACH(f, h) FOUR(f, 0, h), FOUR(f, 4, h), FOUR(f, 8, h), FOUR(f, 12, h)
#elif LANES == 8
#define EACH(f, h) FOUR(f, 0, h), FOUR(f, 4, h)
#else
#define EACH(f, h) FOUR(f, 0, h)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif
/* Adds lanes h apart: lanes without bit h then belong to a, those with it to b. */
#define PAIR(a, b, h) (SHUFFLE(a, b, EACH(PICK, h)) + SHUFFLE(a, b, EACH(CROSS, h)))
#define HALVE(sums, h) \
    for (int j = 0; j < (h); j++) (sums)[j] = PAIR((sums)[j], (sums)[j + (h)], h)

/* Scalar products of one query with LANES keys. */
static hot vec products(const float *query, const float *const *keys, int64_t width) {
    vec sums[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sums[j] = all(0.0f);
    for (int64_t at = 0; at < width; at += LANES) {
        vec x = load(query + at);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) sums[j] += x * load(keys[j] + at);
    }
#if LANES == 16
    HALVE(sums, 8);
#endif
#if LANES >= 8
    HALVE(sums, 4);
#endif
    HALVE(sums, 2);
    HALVE(sums, 1);
    return sums[0];
}
