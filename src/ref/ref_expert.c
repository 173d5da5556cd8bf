/* SPDX-License-Identifier: Apache-2.0 */
/* One expert on one token: h = silu(clamp g) * clamp u, y = h Wd^T, and their gradients. */
#include "ref/ref_parts.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

/* Eight running sums, so that the loop is not one long chain of additions. */
static double dot(const double *a, const double *b, int64_t n) {
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l];
    }
    for (; i < n; i++) lane[0] += a[i] * b[i];
    double sum = 0;
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

static void add_scaled(double *restrict to, double scale, const double *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += scale * from[i];
}

/* A rounding point. */
static double point(const fy_ref_expert *expert, double value) {
    return expert->mode == FY_REF_POINTS ? fy_ref_bf16(value) : value;
}

/* What backward gets to see of g (bounded above) and of u (bounded on both sides). */
static double saved_g(const fy_ref_expert *expert, double g) {
    if (expert->mode == FY_REF_EXACT) return g;
    return expert->limit > 0 ? fy_ref_bf16_beside(g, expert->limit) : fy_ref_bf16(g);
}

static double saved_u(const fy_ref_expert *expert, double u) {
    return u < 0 ? -saved_g(expert, -u) : saved_g(expert, u);
}

/* SwiGLU of one element. The comparisons let NaN through: it is not clamped, and its gradient is not cut off. */
typedef struct swiglu {
    double h;                 /* silu(clamp g) * clamp u, not rounded */
    double by_g, by_u;        /* derivatives by the clamped values */
    int g_clamped, u_clamped; /* then no gradient passes, whatever it is */
} swiglu;

static swiglu swiglu_at(double g, double u, double limit) {
    swiglu at;
    at.g_clamped = limit > 0 && g > limit;
    at.u_clamped = limit > 0 && (u > limit || u < -limit);
    if (at.g_clamped) g = limit;
    if (at.u_clamped) u = copysign(limit, u);
    double s = 1 / (1 + exp(-g));
    at.h = g * s * u;
    at.by_g = u * s * (1 + g * (1 - s));
    at.by_u = g * s;
    return at;
}

void fy_ref_expert_forward(const fy_ref_expert *expert, const double *x, fy_ref_row *row) {
    int64_t hidden = expert->hidden, width = expert->width;
    for (int64_t i = 0; i < width; i++) {
        double g = dot(x, expert->gate + i * hidden, hidden);
        double u = dot(x, expert->up + i * hidden, hidden);
        row->h[i] = point(expert, swiglu_at(g, u, expert->limit).h);
        row->g[i] = saved_g(expert, g);
        row->u[i] = saved_u(expert, u);
    }
    for (int64_t j = 0; j < hidden; j++) row->y[j] = point(expert, dot(row->h, expert->down + j * width, width));
}

double fy_ref_expert_backward(const fy_ref_expert *expert, const double *x, const double *dout, double weight,
                              fy_ref_row *row) {
    int64_t hidden = expert->hidden, width = expert->width;
    memset(row->dh, 0, (size_t)width * sizeof(double));
    for (int64_t j = 0; j < hidden; j++) add_scaled(row->dh, dout[j], expert->down + j * width, width);

    double dweight = 0;
    for (int64_t i = 0; i < width; i++) {
        swiglu at = swiglu_at(row->g[i], row->u[i], expert->limit);
        dweight += row->dh[i] * at.h;
        row->wh[i] = point(expert, weight * at.h);
        double dh = weight * row->dh[i];
        row->dg[i] = at.g_clamped ? 0 : point(expert, dh * at.by_g);
        row->du[i] = at.u_clamped ? 0 : point(expert, dh * at.by_u);
    }

    memset(row->dx, 0, (size_t)hidden * sizeof(double));
    for (int64_t i = 0; i < width; i++) {
        add_scaled(row->dx, row->dg[i], expert->gate + i * hidden, hidden);
        add_scaled(row->dx, row->du[i], expert->up + i * hidden, hidden);
    }
    for (int64_t j = 0; j < hidden; j++) row->dx[j] = point(expert, row->dx[j]);

    for (int64_t i = 0; i < width && expert->dgate; i++) add_scaled(expert->dgate + i * hidden, row->dg[i], x, hidden);
    for (int64_t i = 0; i < width && expert->dup; i++) add_scaled(expert->dup + i * hidden, row->du[i], x, hidden);
    for (int64_t j = 0; j < hidden && expert->ddown; j++) {
        add_scaled(expert->ddown + j * width, dout[j], row->wh, width);
    }
    return dweight;
}
