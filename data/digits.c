/*
 * Synthetic digits, for machines without data: each digit is a few strokes, turned, sheared, scaled, moved and
 * wobbled at random, drawn with a pen of random width, with a little noise added.
 *
 * Random numbers are counter-based, with one stream per image, so image i is the same on every rank.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "kernels/random.h"

#define CLASSES     10
#define SIDE        28
#define POINTS      16
#define PEN_UP      -1.0f /* an x: the next point begins a new stroke */
#define IMAGE_BYTES ((size_t)SIDE * SIDE)

typedef struct point {
    float x, y;
} point;

/* Strokes of a digit in a box of 1 by 1, y downwards. */
typedef struct glyph {
    int npoints;
    point points[POINTS];
} glyph;

/* clang-format off */
static const glyph glyphs[CLASSES] = {
    {11, {{.5f, 0}, {.25f, .1f}, {.1f, .35f}, {.1f, .65f}, {.25f, .9f}, {.5f, 1}, {.75f, .9f}, {.9f, .65f},
          {.9f, .35f}, {.75f, .1f}, {.5f, 0}}},
    {3, {{.3f, .2f}, {.55f, 0}, {.55f, 1}}},
    {8, {{.1f, .25f}, {.25f, .05f}, {.55f, 0}, {.85f, .15f}, {.85f, .4f}, {.5f, .7f}, {.1f, 1}, {.9f, 1}}},
    {11, {{.1f, .1f}, {.45f, 0}, {.8f, .1f}, {.8f, .35f}, {.45f, .47f}, {.8f, .57f}, {.9f, .75f}, {.75f, .95f},
          {.45f, 1}, {.2f, .95f}, {.1f, .85f}}},
    {6, {{.65f, 0}, {.1f, .65f}, {.95f, .65f}, {PEN_UP, 0}, {.7f, .35f}, {.7f, 1}}},
    {10, {{.85f, 0}, {.2f, 0}, {.15f, .45f}, {.45f, .38f}, {.75f, .45f}, {.9f, .65f}, {.8f, .9f}, {.5f, 1},
          {.2f, .97f}, {.1f, .85f}}},
    {12, {{.75f, 0}, {.45f, .1f}, {.2f, .4f}, {.1f, .7f}, {.25f, .95f}, {.5f, 1}, {.8f, .92f}, {.9f, .72f},
          {.75f, .53f}, {.5f, .48f}, {.25f, .55f}, {.12f, .7f}}},
    {3, {{.1f, 0}, {.9f, 0}, {.4f, 1}}},
    {15, {{.5f, .46f}, {.2f, .36f}, {.15f, .16f}, {.5f, 0}, {.85f, .16f}, {.8f, .36f}, {.5f, .46f}, {.15f, .6f},
          {.1f, .82f}, {.3f, .97f}, {.5f, 1}, {.7f, .97f}, {.9f, .82f}, {.85f, .6f}, {.5f, .46f}}},
    {11, {{.88f, .3f}, {.7f, .5f}, {.4f, .53f}, {.15f, .4f}, {.12f, .2f}, {.35f, .02f}, {.65f, .02f}, {.88f, .2f},
          {.88f, .45f}, {.8f, .75f}, {.6f, 1}}},
};
/* clang-format on */

/* The random numbers of one image, in order. */
typedef struct dice {
    uint64_t seed, stream, next;
} dice;

static float between(dice *die, float least, float most) {
    return least + (most - least) * (float)tutti_random_uniform(die->seed, die->stream, die->next++);
}

/* Computes the glyph's points in pixels. */
static void place_points(const glyph *shape, dice *die, point *points) {
    float angle = between(die, -0.25f, 0.25f), shear = between(die, -0.25f, 0.25f);
    float width = between(die, 9, 14), height = between(die, 16, 21);
    float centre_x = SIDE / 2.0f + between(die, -2, 2), centre_y = SIDE / 2.0f + between(die, -2, 2);
    float cosine = cosf(angle), sine = sinf(angle);
    for (int i = 0; i < shape->npoints; i++) {
        float wobble_x = between(die, -0.07f, 0.07f), wobble_y = between(die, -0.05f, 0.05f);
        points[i].x = PEN_UP;
        if (shape->points[i].x == PEN_UP) continue;
        float y = (shape->points[i].y + wobble_y - 0.5f) * height;
        float x = (shape->points[i].x + wobble_x - 0.5f) * width - shear * y;
        /* never below 0, which PEN_UP would be */
        points[i].x = fmaxf(centre_x + cosine * x - sine * y, 0);
        points[i].y = centre_y + sine * x + cosine * y;
    }
}

static float squared_distance(float x, float y, point a, point b) {
    float dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
    float along = squared > 0 ? ((x - a.x) * dx + (y - a.y) * dy) / squared : 0;
    along = fminf(fmaxf(along, 0), 1);
    float rest_x = x - (a.x + along * dx), rest_y = y - (a.y + along * dy);
    return rest_x * rest_x + rest_y * rest_y;
}

/* ink = max(ink, the line from a to b): full within the pen's radius, fading over one pixel. */
static void draw_line(point a, point b, float radius, float *ink) {
    float reach = radius + 1;
    int left = (int)fmaxf(fminf(a.x, b.x) - reach, 0), right = (int)fminf(fmaxf(a.x, b.x) + reach, SIDE - 1);
    int top = (int)fmaxf(fminf(a.y, b.y) - reach, 0), bottom = (int)fminf(fmaxf(a.y, b.y) + reach, SIDE - 1);
    for (int row = top; row <= bottom; row++)
        for (int column = left; column <= right; column++) {
            float distance = sqrtf(squared_distance((float)column, (float)row, a, b));
            float value = fminf(fmaxf(reach - distance, 0), 1);
            ink[row * SIDE + column] = fmaxf(ink[row * SIDE + column], value);
        }
}

static void draw_digit(int digit, dice *die, uint8_t *image) {
    point points[POINTS];
    float ink[SIDE * SIDE] = {0};
    place_points(&glyphs[digit], die, points);
    float radius = between(die, 0.6f, 1.5f), strength = between(die, 190, 255);
    for (int i = 1; i < glyphs[digit].npoints; i++)
        if (points[i - 1].x != PEN_UP && points[i].x != PEN_UP) draw_line(points[i - 1], points[i], radius, ink);
    for (size_t p = 0; p < IMAGE_BYTES; p += 4) { /* one block of random bits gives the noise of four pixels */
        uint32_t words[4];
        tutti_random_block(die->seed, die->stream, die->next++, words);
        for (size_t lane = 0; lane < 4; lane++) {
            float noise = (float)(words[lane] >> 16) / 65536 * 24;
            image[p + lane] = (uint8_t)fminf(ink[p + lane] * strength + noise, 255);
        }
    }
}

tutti_status tutti_data_open_digits(uint64_t seed, tutti_data_part part, int64_t count,
                                    tutti_data_source **source_out) {
    tutti_data_memory *digits;
    if (count < 1 || count > UINT32_MAX || source_out == NULL || (unsigned)part > TUTTI_DATA_TEST)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_data_open_digits: %lld digits, expected 1 to %lld, of train or test", (long long)count,
                          (long long)UINT32_MAX);
    TUTTI_TRY(tutti_data_source_new(&tutti_data_memory_row, sizeof *digits, &digits));
    digits->base.details = (tutti_data_source_details){
        .height = SIDE, .width = SIDE, .channels = 1, .type = TUTTI_UINT8, .classes = CLASSES, .count = count};
    snprintf(digits->base.name, sizeof digits->base.name, "synthetic digits");
    digits->images = malloc((size_t)count * IMAGE_BYTES);
    digits->labels = malloc((size_t)count);
    if (digits->images == NULL || digits->labels == NULL) {
        tutti_data_source_destroy(&digits->base);
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for %lld drawn digits", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        dice die = {.seed = seed, .stream = tutti_random_stream(TUTTI_RANDOM_DIGITS, (uint64_t)part, (uint64_t)i)};
        digits->labels[i] = (uint8_t)(tutti_random_bits(seed, die.stream, die.next++) % CLASSES);
        draw_digit(digits->labels[i], &die, digits->images + (size_t)i * IMAGE_BYTES);
    }
    *source_out = &digits->base;
    return TUTTI_OK;
}
