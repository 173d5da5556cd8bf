/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward's engine alone, on routing that this file makes up, one rank: no forward runs, its context is filled
 * here.
 *   backward_lab check           values against FP64, and the same bits over rings, contexts, parts and gradient types
 *   backward_lab plain           one small problem of those, for tools that make a program slow
 *   backward_lab time [name]     the benchmark shapes: the whole call, and each product alone after a rest, also over
 *                                cli/bench_plain.h's of 8192 x 8192 x 8192 before it
 */
#include "problem.cuh"

/* The engine's headers are C; nothing atomic in them is touched here. */
#define _Atomic
extern "C" {
#include "cli/bench_plain.h"
#include "cuda/kernels_backward.h"
#include "cuda/launch_backward.h"
#include "cuda/maps.h"
}
#include "rules/side.h"
#include "rules/swiglu.h"
#include "rules/tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>
#include <unistd.h>

static int sms_of_device = 132;

struct Problem {
    const char *name;
    int N, H, I, S, E, K;
    float limit;
    const char *ids; /* "random", "holes", "one", "few" */
};

struct Setting {
    int64_t ring, mini, context; /* rows; context -1: all */
    fy_gpu_knobs knobs;
    bool f32, add, table;
    int parts; /* 3: one call; 12: data, then weight */
};

/* One value of a chain of double sums per warp. */
static __global__ void ref_gate_up(uint16_t *g, uint16_t *u, const __nv_bfloat16 *x, const int *token,
                                   const int *expert, int64_t rows, const __nv_bfloat16 *gate, const __nv_bfloat16 *up,
                                   int H, int I, float limit) {
    for (int64_t v = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32; v < rows * I;
         v += (int64_t)gridDim.x * blockDim.x / 32) {
        int64_t r = v / I, i = v % I, t = token[r], e = expert[r];
        if (t < 0) continue;
        double a = warp_dot(x + t * H, gate + (e * I + i) * H, H), b = warp_dot(x + t * H, up + (e * I + i) * H, H);
        if ((threadIdx.x & 31) == 0) {
            g[v] = fy_save_gate((float)a, limit);
            u[v] = fy_save_up((float)b, limit);
        }
    }
}

/*
 * dh, then dg, du, w h (rounded to BF16 as the layer does) and dw. One block per row; the shared expert has weight 1.
 */
static __global__ void ref_grad(double *dg, double *du, double *wh, double *dw, const uint16_t *g, const uint16_t *u,
                                const __nv_bfloat16 *dout, const int *token, const int *expert, const float *weight,
                                int64_t rows, const __nv_bfloat16 *down, int H, int I, float limit) {
    __shared__ double sums[256];
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        int64_t t = token[r], e = expert[r];
        double sum = 0;
        if (t >= 0)
            for (int i = threadIdx.x; i < I; i += blockDim.x) {
                double dh = 0, w = weight ? (double)weight[r] : 1.0;
                for (int h = 0; h < H; h++)
                    dh +=
                        (double)__bfloat162float(dout[t * H + h]) * (double)__bfloat162float(down[(e * H + h) * I + i]);
                double gv = fy_bf16_to_f32(g[r * I + i]), uv = fy_bf16_to_f32(u[r * I + i]);
                double gc = limit > 0 && gv > limit ? limit : gv, uc = limit > 0 ? (uv > limit    ? limit
                                                                                    : uv < -limit ? -limit
                                                                                                  : uv)
                                                                                 : uv;
                double s = 1 / (1 + exp(-gc)), silu = gc * s;
                dg[r * I + i] = limit > 0 && gv > limit ? 0 : round_bf16(w * dh * uc * s * (1 + gc * (1 - s)));
                du[r * I + i] = limit > 0 && (uv > limit || uv < -limit) ? 0 : round_bf16(w * dh * silu);
                wh[r * I + i] = round_bf16(w * silu * uc);
                sum += dh * silu * uc;
            }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int d = 128; d; d /= 2) {
            if (threadIdx.x < d) sums[threadIdx.x] += sums[threadIdx.x + d];
            __syncthreads();
        }
        if (threadIdx.x == 0 && dw) dw[r] = sums[0];
        __syncthreads();
    }
}

/* dx of a row, added to its token. */
static __global__ void ref_dx(double *dx, const double *dg, const double *du, const int *token, const int *expert,
                              int64_t rows, const __nv_bfloat16 *gate, const __nv_bfloat16 *up, int H, int I) {
    for (int64_t v = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; v < rows * H;
         v += (int64_t)gridDim.x * blockDim.x) {
        int64_t r = v / H, h = v % H, t = token[r], e = expert[r];
        if (t < 0) continue;
        double s = 0;
        for (int i = 0; i < I; i++)
            s += dg[r * I + i] * (double)__bfloat162float(gate[(e * I + i) * H + h]) +
                 du[r * I + i] * (double)__bfloat162float(up[(e * I + i) * H + h]);
        atomicAdd(&dx[t * H + h], s);
    }
}

/* out[e][m][n] += sum over the rows of e of a[r][m] b[r][n]; a (dg, du) or dout by token. One thread per element. */
static __global__ void ref_weight(double *out, int e, int64_t first, int64_t rows, const double *a,
                                  const __nv_bfloat16 *a_token, const double *b, const __nv_bfloat16 *b_token,
                                  const int *token, int M, int N) {
    for (int64_t v = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; v < (int64_t)M * N;
         v += (int64_t)gridDim.x * blockDim.x) {
        int64_t m = v / N, n = v % N;
        double s = 0;
        for (int64_t r = first; r < first + rows; r++) {
            int64_t t = token[r];
            double p = a ? a[r * M + m] : (double)__bfloat162float(a_token[t * M + m]);
            double q = b ? b[r * N + n] : (double)__bfloat162float(b_token[t * N + n]);
            s += p * q;
        }
        out[(int64_t)e * M * N + v] = s;
    }
}

struct Result {
    std::vector<uint8_t> dx, dw, grad[6];
};

struct Bench {
    Problem p;
    std::vector<int64_t> ids;
    std::vector<float> weights;
    __nv_bfloat16 *x, *dout, *w[6]; /* gate, up, down, shared ... */
    int64_t count[6];
    /* canonical padded rows */
    std::vector<int> row_token, row_expert, first_block, expert_rows;
    std::vector<float> row_weight;
    std::vector<fy_gpu_source> source;
    std::vector<int> slot_row;
    int64_t blocks = 0, rows = 0;
    int *d_token, *d_expert, *d_token_s, *d_expert_s;
    float *d_weight;
    uint16_t *g, *u, *sg, *su; /* of every padded row: what a context saves */
    Result first;

    void route() {
        ids.assign((size_t)p.N * p.K, 0);
        weights.assign((size_t)p.N * p.K, 0);
        std::string kind = p.ids;
        std::vector<std::pair<float, int>> score(p.E);
        for (int t = 0; t < p.N; t++) {
            for (int e = 0; e < p.E; e++) score[e] = {noise(11, (uint64_t)t * p.E + e), e};
            int top = std::min(p.K, p.E);
            std::partial_sort(score.begin(), score.begin() + top, score.end(), std::greater<std::pair<float, int>>());
            for (int k = 0; k < p.K; k++) {
                int64_t &id = ids[(size_t)t * p.K + k];
                uint32_t dice = mix(31 + (uint64_t)t * p.K + k);
                id = score[k % top].second;
                if (kind == "holes" && (dice % 3 == 0 || t % 7 == 0)) id = -1;
                if (kind == "one") id = p.E - 1;
                if (kind == "few") id = dice % 2 * (p.E - 1);
                float v = noise(5, (uint64_t)t * p.K + k);
                weights[(size_t)t * p.K + k] = id < 0 ? NAN : dice % 11 == 0 ? 0.0f : 0.2f + 0.3f * v;
            }
        }
        std::vector<std::vector<int>> of(p.E);
        for (size_t i = 0; i < ids.size(); i++)
            if (ids[i] >= 0) of[ids[i]].push_back((int)i);
        slot_row.assign(ids.size(), -1);
        first_block.assign(1, 0);
        for (int e = 0; e < p.E; e++) {
            expert_rows.push_back((int)of[e].size());
            rows += (int64_t)of[e].size();
            int64_t padded = fy_round_to_blocks((int64_t)of[e].size());
            for (int64_t i = 0; i < padded; i++) {
                bool live = i < (int64_t)of[e].size();
                int slot = live ? of[e][i] : -1;
                if (live) slot_row[slot] = (int)row_token.size();
                row_token.push_back(live ? slot / p.K : -1);
                row_expert.push_back(e);
                row_weight.push_back(live ? weights[slot] : 0);
                source.push_back({0, live ? slot : 0});
            }
            first_block.push_back((int)(row_token.size() / 64));
        }
        blocks = (int64_t)row_token.size() / 64;
    }

    template <class T>
    static T *upload(const std::vector<T> &v) {
        T *d;
        CHECK(cudaMalloc(&d, v.size() * sizeof(T) + 256));
        CHECK(cudaMemcpy(d, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
        return d;
    }

    void make(const Problem &given) {
        p = given;
        route();
        int64_t EIH = (int64_t)p.E * p.I * p.H, SH = (int64_t)p.S * p.H;
        for (int i = 0; i < 6; i++) {
            count[i] = i < 3 ? EIH : SH;
            CHECK(cudaMalloc(&w[i], count[i] * 2 + 256));
            float scale = i % 3 < 2 ? 1 / sqrtf((float)p.H) : 1.5f / sqrtf((float)(i < 3 ? p.I : std::max(p.S, 1)));
            fill_noise<<<1024, 256>>>(w[i], count[i], i + 1, scale);
        }
        CHECK(cudaMalloc(&x, (int64_t)p.N * p.H * 2 + 256));
        CHECK(cudaMalloc(&dout, (int64_t)p.N * p.H * 2 + 256));
        fill_noise<<<1024, 256>>>(x, (int64_t)p.N * p.H, 9, 1.0f);
        fill_noise<<<1024, 256>>>(dout, (int64_t)p.N * p.H, 10, 1.0f);
        d_token = upload(row_token);
        d_expert = upload(row_expert);
        d_weight = upload(row_weight);
        std::vector<int> own(p.N), zero(p.N, 0);
        for (int i = 0; i < p.N; i++) own[i] = i;
        d_token_s = upload(own);
        d_expert_s = upload(zero);
        int64_t padded = blocks * 64, ps = fy_round_to_blocks(p.N);
        CHECK(cudaMalloc(&g, padded * p.I * 2 + 256));
        CHECK(cudaMalloc(&u, padded * p.I * 2 + 256));
        CHECK(cudaMalloc(&sg, ps * p.S * 2 + 256));
        CHECK(cudaMalloc(&su, ps * p.S * 2 + 256));
        CHECK(cudaMemset(g, 0xff, padded * p.I * 2)); /* NaN in padding must not show */
        CHECK(cudaMemset(u, 0xff, padded * p.I * 2));
        CHECK(cudaMemset(sg, 0xff, ps * p.S * 2));
        CHECK(cudaMemset(su, 0xff, ps * p.S * 2));
    }

    void drop() {
        for (auto q : w) cudaFree(q);
        for (void *q : {(void *)x, (void *)dout, (void *)d_token, (void *)d_expert, (void *)d_token_s,
                        (void *)d_expert_s, (void *)d_weight, (void *)g, (void *)u, (void *)sg, (void *)su})
            cudaFree(q);
    }

    /* Everything of one call. */
    struct Run {
        fy_shape shape;
        fy_gpu_engine engine;
        fy_gpu_gradient gradient;
        uint8_t *symmetric, *context;
        int64_t context_bytes;
        fy_gpu_context at;
        ferry_backward_args args;
        __nv_bfloat16 *dx;
        float *dw;
        uint8_t *grad[6];
        int64_t grad_bytes[6];
        std::vector<void *> table[3];
        cudaStream_t stream;
        cudaEvent_t begin, end;
    };

    void fill_context(Run &r) {
        const fy_shape &s = r.shape;
        int64_t RB = s.ring_rows / 64, macros = fy_divide_up(blocks, RB);
        std::vector<int> first_tile(1, 0), macro_tile;
        for (int e = 0; e < p.E; e++)
            first_tile.push_back(first_tile[e] + (int)fy_tiles_between(first_block[e], first_block[e + 1], RB));
        for (int64_t m = 0; m < macros; m++) {
            int e = 0;
            while (first_block[e + 1] <= m * RB) e++;
            macro_tile.push_back(first_tile[e] + (int)fy_tiles_between(first_block[e], m * RB, RB));
        }
        macro_tile.push_back(first_tile[p.E]);
        fy_gpu_kept kept = {7, p.N, (int)blocks, first_tile[p.E], (int)macros, (int)rows, 0, 0, 1};
        auto put = [&](void *to, const void *from, size_t n) { CHECK(cudaMemcpy(to, from, n, cudaMemcpyDefault)); };
        std::vector<int> expert(ids.begin(), ids.end());
        std::vector<float> w0 = weights;
        for (size_t i = 0; i < w0.size(); i++)
            if (ids[i] < 0) w0[i] = 0;
        put(r.at.kept, &kept, sizeof kept);
        put(r.at.first_block, first_block.data(), first_block.size() * 4);
        put(r.at.first_tile, first_tile.data(), first_tile.size() * 4);
        put(r.at.expert_rows, expert_rows.data(), expert_rows.size() * 4);
        put(r.at.macro_tile, macro_tile.data(), macro_tile.size() * 4);
        put(r.at.source, source.data(), source.size() * 8);
        put(r.at.slot_row, slot_row.data(), slot_row.size() * 4);
        put(r.at.expert, expert.data(), expert.size() * 4);
        put(r.at.weights, w0.data(), w0.size() * 4);
        CHECK(cudaMemset(r.at.own_x, 0, fy_round_to_blocks(p.N) * p.H * 2));
        put(r.at.own_x, x, (size_t)p.N * p.H * 2);
        int64_t saved = std::min(s.context_rows, blocks * 64);
        std::vector<uint16_t> hx((size_t)p.N * p.H), rows_x((size_t)saved * p.H, 0);
        put(hx.data(), x, hx.size() * 2);
        for (int64_t i = 0; i < saved; i++)
            if (row_token[i] >= 0) memcpy(&rows_x[i * p.H], &hx[(size_t)row_token[i] * p.H], p.H * 2);
        put(r.at.x, rows_x.data(), rows_x.size() * 2);
        put(r.at.g, g, saved * p.I * 2);
        put(r.at.u, u, saved * p.I * 2);
        if (p.S && s.context_rows) {
            put(r.at.shared_g, sg, fy_round_to_blocks(p.N) * p.S * 2);
            put(r.at.shared_u, su, fy_round_to_blocks(p.N) * p.S * 2);
        }
    }

    void open(Run &r, const Setting &c) {
        fy_shape &s = r.shape;
        s = {};
        s.hidden = p.H;
        s.intermediate = p.I;
        s.shared = p.S;
        s.experts = s.local_experts = p.E;
        s.slots = p.K;
        s.max_tokens = p.N;
        s.nranks = 1;
        s.max_rows = (int64_t)p.N * p.K;
        s.max_blocks = fy_most_blocks(s.max_rows, p.E);
        s.ring_rows = c.ring ? std::min(fy_round_to_blocks(c.ring), std::max<int64_t>(s.max_blocks, 1) * 64)
                             : std::max<int64_t>(s.max_blocks, 1) * 64;
        s.context_rows = c.context < 0 ? s.max_blocks * 64 : std::min(fy_round_to_blocks(c.context), s.max_blocks * 64);
        s.minibatch_rows = c.mini;
        s.limit = p.limit;
        fy_gpu_choose_rows(&s, sms_of_device);
        uint64_t bytes = fy_gpu_symmetric_bytes(&s);
        CHECK(cudaMalloc(&r.symmetric, bytes));
        CHECK(cudaMemset(r.symmetric, 0, bytes));
        fy_gpu_knobs knobs = c.knobs;
        if (knobs.sms == 0) knobs.sms = sms_of_device;
        std::vector<int32_t> expert_rank(p.E, 0);
        if (fy_gpu_engine_create(&r.engine, &s, &knobs, 0, expert_rank.data(), &r.symmetric, 5, 2) ||
            fy_gpu_gradient_create(&r.gradient, &r.engine)) {
            printf("create: %s\n", ferry_last_error());
            exit(2);
        }
        /* Rings full of NaN: nothing that was not written may show. */
        CHECK(cudaMemset(r.gradient.call.table.dout_ring, 0xff, s.ring_rows * p.H * 2));
        CHECK(cudaMemset(r.engine.call.table.x_ring, 0xff, s.ring_rows * p.H * 2));
        for (uint16_t *q : {r.gradient.call.table.g_ring, r.gradient.call.table.u_ring, r.gradient.call.table.dg_ring,
                            r.gradient.call.table.du_ring, r.engine.call.table.h_ring})
            CHECK(cudaMemset(q, 0xff, s.ring_rows * p.I * 2));
        r.context_bytes = fy_gpu_lay_context(&s, nullptr, &r.at);
        CHECK(cudaMalloc(&r.context, r.context_bytes));
        fy_gpu_lay_context(&s, r.context, &r.at);
        fill_context(r);
        CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreate(&r.begin));
        CHECK(cudaEventCreate(&r.end));
        CHECK(cudaMalloc(&r.dx, (int64_t)p.N * p.H * 2 + 256));
        CHECK(cudaMalloc(&r.dw, (int64_t)p.N * p.K * 4 + 256));
        r.args = {};
        r.args.size = sizeof r.args;
        r.args.parts = 3;
        r.args.dout = dout;
        r.args.dx = r.dx;
        r.args.dweights = r.dw;
        r.args.stream = r.stream;
        ferry_matrices *weight[6] = {&r.args.params.gate,        &r.args.params.up,        &r.args.params.down,
                                     &r.args.params.shared_gate, &r.args.params.shared_up, &r.args.params.shared_down};
        ferry_gradient *to[6] = {&r.args.grads.gate,        &r.args.grads.up,        &r.args.grads.down,
                                 &r.args.grads.shared_gate, &r.args.grads.shared_up, &r.args.grads.shared_down};
        for (int i = 0; i < 6; i++) {
            int inner = i < 3 ? p.I : p.S;
            int64_t row = i % 3 < 2 ? p.H : inner, each = (int64_t)inner * p.H;
            r.grad_bytes[i] = count[i] * (c.f32 ? 4 : 2);
            CHECK(cudaMalloc(&r.grad[i], r.grad_bytes[i] + 256));
            *weight[i] = {w[i], nullptr, each, row, FERRY_BF16};
            to[i]->to = {r.grad[i], nullptr, each, row, c.f32 ? FERRY_F32 : FERRY_BF16};
            to[i]->beta = c.add ? 1.0f : 0.0f;
            if (i < 3 && c.table) {
                r.table[i].clear();
                for (int e = 0; e < p.E; e++) r.table[i].push_back(r.grad[i] + e * each * (c.f32 ? 4 : 2));
                to[i]->to.base = nullptr;
                to[i]->to.table = r.table[i].data();
            }
        }
    }

    void close(Run &r) {
        fy_gpu_gradient_destroy(&r.gradient);
        fy_gpu_engine_destroy(&r.engine);
        for (void *q : {(void *)r.symmetric, (void *)r.context, (void *)r.dx, (void *)r.dw}) cudaFree(q);
        for (auto q : r.grad) cudaFree(q);
        cudaStreamDestroy(r.stream);
        cudaEventDestroy(r.begin);
        cudaEventDestroy(r.end);
    }

    bool call(Run &r, const Setting &c, bool poison) {
        if (poison) {
            CHECK(cudaMemsetAsync(r.dx, 0xff, (int64_t)p.N * p.H * 2, r.stream));
            CHECK(cudaMemsetAsync(r.dw, 0xff, (int64_t)p.N * p.K * 4, r.stream));
            for (int i = 0; i < 6; i++) CHECK(cudaMemsetAsync(r.grad[i], c.add ? 0 : 0xff, r.grad_bytes[i], r.stream));
        }
        CHECK(cudaEventRecord(r.begin, r.stream));
        bool ok = true;
        for (int parts : {c.parts == 12 ? 1 : c.parts, c.parts == 12 ? 2 : 0}) {
            r.args.parts = parts;
            if (parts && fy_gpu_gradient_backward(&r.gradient, r.context, &r.args)) {
                printf("backward: %s\n", ferry_last_error());
                return false;
            }
        }
        CHECK(cudaEventRecord(r.end, r.stream));
        CHECK(cudaStreamSynchronize(r.stream));
        if (fy_gpu_engine_fault(&r.engine)) {
            printf("fault: %s\n", ferry_last_error());
            ok = false;
        }
        return ok;
    }

    Result fetch(Run &r) {
        Result out;
        auto get = [](std::vector<uint8_t> &v, const void *from, size_t n) {
            v.resize(n);
            CHECK(cudaMemcpy(v.data(), from, n, cudaMemcpyDefault));
        };
        get(out.dx, r.dx, (size_t)p.N * p.H * 2);
        get(out.dw, r.dw, (size_t)p.N * p.K * 4);
        for (int i = 0; i < 6; i++) get(out.grad[i], r.grad[i], r.grad_bytes[i]);
        return out;
    }

    static double relative(const std::vector<double> &ref, const std::vector<uint8_t> &got, bool f32) {
        double num = 0, den = 0;
        for (size_t i = 0; i < ref.size(); i++) {
            float v;
            if (f32) {
                memcpy(&v, &got[i * 4], 4);
            } else {
                uint16_t h;
                memcpy(&h, &got[i * 2], 2);
                v = fy_bf16_to_f32(h);
            }
            num += (v - ref[i]) * (v - ref[i]);
            den += ref[i] * ref[i];
        }
        return den == 0 ? sqrt(num) : sqrt(num / den);
    }

    /* Errors of dx, dw and the gradients against FP64 from the same rounded g, u, dg, du, w h. */
    void errors(const Result &out, bool f32, double (&error)[8]) {
        int64_t padded = blocks * 64, N = p.N;
        auto room = [](int64_t n) {
            double *d;
            CHECK(cudaMalloc(&d, n * 8 + 256));
            CHECK(cudaMemset(d, 0, n * 8));
            return d;
        };
        double *dg = room(padded * p.I), *du = room(padded * p.I), *wh = room(padded * p.I), *dw = room(padded),
               *dx = room(N * p.H);
        double *sdg = room(N * p.S), *sdu = room(N * p.S), *swh = room(N * p.S);
        uint16_t *rg, *ru, *rsg, *rsu;
        CHECK(cudaMalloc(&rg, padded * p.I * 2 + 256));
        CHECK(cudaMalloc(&ru, padded * p.I * 2 + 256));
        CHECK(cudaMalloc(&rsg, N * p.S * 2 + 256));
        CHECK(cudaMalloc(&rsu, N * p.S * 2 + 256));
        float limit = fy_swiglu_limit(p.limit);
        if (padded) {
            ref_gate_up<<<2048, 256>>>(rg, ru, x, d_token, d_expert, padded, w[0], w[1], p.H, p.I, limit);
            ref_grad<<<2048, 256>>>(dg, du, wh, dw, rg, ru, dout, d_token, d_expert, d_weight, padded, w[2], p.H, p.I,
                                    p.limit);
            ref_dx<<<2048, 256>>>(dx, dg, du, d_token, d_expert, padded, w[0], w[1], p.H, p.I);
        }
        if (p.S && N) {
            ref_gate_up<<<2048, 256>>>(rsg, rsu, x, d_token_s, d_expert_s, N, w[3], w[4], p.H, p.S, limit);
            ref_grad<<<2048, 256>>>(sdg, sdu, swh, nullptr, rsg, rsu, dout, d_token_s, d_expert_s, nullptr, N, w[5],
                                    p.H, p.S, p.limit);
            ref_dx<<<2048, 256>>>(dx, sdg, sdu, d_token_s, d_expert_s, N, w[3], w[4], p.H, p.S);
        }
        CHECK(cudaDeviceSynchronize());
        auto host = [](const double *d, int64_t n) {
            std::vector<double> v(n);
            CHECK(cudaMemcpy(v.data(), d, n * 8, cudaMemcpyDefault));
            return v;
        };
        error[0] = relative(host(dx, N * p.H), out.dx, false);
        std::vector<double> row_dw = host(dw, padded), ref_dw(ids.size(), 0);
        for (size_t i = 0; i < ids.size(); i++)
            if (slot_row[i] >= 0) ref_dw[i] = row_dw[slot_row[i]];
        error[1] = relative(ref_dw, out.dw, true);
        for (int i = 0; i < 6; i++) {
            double *ref = room(count[i]);
            int inner = i < 3 ? p.I : p.S, M = i % 3 < 2 ? inner : p.H, C = i % 3 < 2 ? p.H : inner;
            const double *a = i == 0   ? dg
                              : i == 1 ? du
                              : i == 3 ? sdg
                              : i == 4 ? sdu
                                       : nullptr,
                         *b = i == 2   ? wh
                              : i == 5 ? swh
                                       : nullptr;
            for (int e = 0; e < (i < 3 ? p.E : 1); e++) {
                int64_t first_row = i < 3 ? first_block[e] * 64 : 0, n = i < 3 ? expert_rows[e] : N;
                if (n && M)
                    ref_weight<<<2048, 256>>>(ref, e, first_row, n, a, dout, b, x, i < 3 ? d_token : d_token_s, M, C);
            }
            CHECK(cudaDeviceSynchronize());
            error[2 + i] = relative(host(ref, count[i]), out.grad[i], f32);
            cudaFree(ref);
        }
        for (void *q : {(void *)dg, (void *)du, (void *)wh, (void *)dw, (void *)dx, (void *)sdg, (void *)sdu,
                        (void *)swh, (void *)rg, (void *)ru, (void *)rsg, (void *)rsu})
            cudaFree(q);
    }
};

static const fy_gpu_knobs usual = {0, 2, 0, 1};

static bool same(const char *name, const std::vector<uint8_t> &a, const std::vector<uint8_t> &b) {
    if (a == b) return true;
    for (size_t i = 0; i < a.size(); i++)
        if (a[i] != b[i]) {
            printf("  %s differs at byte %zu of %zu\n", name, i, a.size());
            break;
        }
    return false;
}

/* F32 results rounded, or kept: what a setting's gradients should be, from the first run's F32 ones. */
static std::vector<uint8_t> expected_gradient(const std::vector<uint8_t> &f32, bool want_f32) {
    if (want_f32) return f32;
    std::vector<uint8_t> v(f32.size() / 2);
    for (size_t i = 0; i < v.size() / 2; i++) {
        float x;
        memcpy(&x, &f32[4 * i], 4);
        uint16_t h = fy_bf16_from_f32(x);
        memcpy(&v[2 * i], &h, 2);
    }
    return v;
}

static int run_check(const std::vector<Problem> &problems) {
    int failures = 0, runs = 0;
    static const char *const names[8] = {"dx", "dw", "gate", "up", "down", "shared gate", "shared up", "shared down"};
    for (const Problem &p : problems) {
        Bench b;
        b.make(p);
        /* First nothing is saved and the ring takes everything: its g and u are what later settings save. */
        std::vector<Setting> settings = {{0, 0, 0, usual, true, false, false, 3},
                                         {0, 0, -1, usual, true, false, false, 3},
                                         {0, 128, -1, usual, false, false, false, 3},
                                         {0, 0, -1, usual, true, true, false, 3},
                                         {0, 0, -1, usual, false, true, true, 3},
                                         {0, 0, -1, usual, true, false, true, 12},
                                         {128, 128, -1, usual, true, false, false, 3},
                                         {192, 128, 0, usual, true, false, false, 3},
                                         {64, 128, 320, usual, false, false, false, 3},
                                         {256, 128, 192, {40, 1, 0, 0}, true, false, false, 12},
                                         {192, 128, 64, {1, 1, 0, 1}, true, false, false, 3},
                                         {512, 256, 320, {132, 3, 4, 1}, true, true, false, 3}};
        for (size_t i = 0; i < settings.size(); i++) {
            const Setting &c = settings[i];
            Bench::Run r;
            b.open(r, c);
            bool good = true;
            for (int repeat = 0; repeat < 2 && good; repeat++, runs++) {
                good = b.call(r, c, true);
                if (!good) break;
                Result out = b.fetch(r);
                if (i == 0 && repeat == 0) {
                    double e[8];
                    b.first = out;
                    b.errors(out, true, e);
                    printf("%-14s N%d H%d I%d S%d E%d K%d rows %lld:", p.name, p.N, p.H, p.I, p.S, p.E, p.K,
                           (long long)b.rows);
                    for (int q = 0; q < (p.S ? 8 : 5); q++) {
                        printf(" %s %.1e", names[q], e[q]);
                        if (!(e[q] <= 4e-3)) good = false;
                    }
                    printf("%s\n", good ? "" : "  FAIL");
                    CHECK(cudaMemcpy(b.g, r.gradient.call.table.g_ring, b.blocks * 64 * p.I * 2, cudaMemcpyDefault));
                    CHECK(cudaMemcpy(b.u, r.gradient.call.table.u_ring, b.blocks * 64 * p.I * 2, cudaMemcpyDefault));
                    if (p.S) {
                        CHECK(cudaMemcpy(b.sg, r.gradient.call.table.shared_g, fy_round_to_blocks(p.N) * p.S * 2,
                                         cudaMemcpyDefault));
                        CHECK(cudaMemcpy(b.su, r.gradient.call.table.shared_u, fy_round_to_blocks(p.N) * p.S * 2,
                                         cudaMemcpyDefault));
                    }
                    if (!good) break;
                    continue;
                }
                good = same("dx", b.first.dx, out.dx) && same("dw", b.first.dw, out.dw);
                for (int q = 0; q < 6; q++)
                    good &= same(names[2 + q], expected_gradient(b.first.grad[q], c.f32), out.grad[q]);
            }
            if (!good)
                printf("  FAIL setting %zu: ring %lld mini %lld context %lld sms %d f32 %d add %d table %d parts %d\n",
                       i, (long long)r.shape.ring_rows, (long long)r.shape.minibatch_rows,
                       (long long)r.shape.context_rows, c.knobs.sms, c.f32, c.add, c.table, c.parts);
            failures += !good;
            fflush(stdout);
            bool fault = r.engine.page->fault;
            if (fault) exit(1);
            b.close(r);
        }
        b.drop();
    }
    printf("%d runs, %d failures\n", runs, failures);
    return failures;
}

/* ---- Timing ---- */

static float median(std::vector<float> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* The yardstick: the plain product of three square matrices. */
struct Plain {
    const int64_t size = 8192;
    bench_plain product;
    __nv_bfloat16 *matrix[3];
    cudaEvent_t begin, end;

    Plain() {
        CUtensorMap *maps[3] = {&product.a, &product.b, &product.c};
        const int rows[3] = {PLAIN_TILE_ROWS, PLAIN_TILE_COLUMNS, PLAIN_STORE_ROWS};
        product.row_tiles = (int)(size / PLAIN_TILE_ROWS);
        product.column_tiles = (int)(size / PLAIN_TILE_COLUMNS);
        product.steps = (int)(size / PLAIN_STEP);
        for (int i = 0; i < 3; i++) {
            CHECK(cudaMalloc(&matrix[i], size * size * 2));
            fill_noise<<<1024, 256>>>(matrix[i], size * size, 31 + i, 1.0f);
            if (fy_gpu_map(maps[i], {matrix[i], 0, size, size, 0, size, "plain", FERRY_BF16}, rows[i])) exit(1);
        }
        CHECK(bench_plain_load());
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
    }

    /* FLOP per millisecond. */
    double rate(cudaStream_t stream) {
        float ms;
        CHECK(cudaEventRecord(begin, stream));
        CHECK(bench_plain_launch(&product, sms_of_device, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        return 2.0 * size * size * size / ms;
    }
};

/*
 * One kind of product alone: its tickets, with every counter as the call before has left it. `*of_plain`: the median
 * of its rate, of `flop` in all, over the plain product's before it.
 */
static float time_alone(Bench::Run &r, const std::vector<fy_gpu_unit> &all, int kind, int which, int repeats,
                        double flop, Plain &plain, float *of_plain) {
    fy_gpu_call call;
    fy_gpu_backward back;
    ferry_backward_args args = r.args;
    args.parts = 3;
    if (which >= 0) {
        ferry_gradient *g[3] = {&args.grads.gate, &args.grads.up, &args.grads.down};
        for (int i = 0; i < 3; i++)
            if (which == 2 ? i < 2 : i == 2) g[i]->to.base = nullptr;
    }
    if (fy_gpu_gradient_describe(&r.gradient, r.context, &args, &call, &back)) return NAN;
    int tickets[FY_SIDES] = {0, 0};
    std::vector<fy_gpu_unit> some;
    auto tiles = [&](int64_t m, int64_t n, int side) {
        return fy_side_tickets((int)fy_divide_up(m, 128), (int)fy_divide_up(n, 256), side);
    };
    int64_t I = r.shape.intermediate, H = r.shape.hidden;
    for (size_t i = 0; i + 1 < all.size(); i++) {
        if (all[i].kind != kind) continue;
        fy_gpu_unit u = all[i];
        for (int s = 0; s < FY_SIDES; s++) {
            int count = kind == FY_WEIGHT ? u.tiles * (which == 2 ? tiles(H, I, s) : 2 * tiles(I, H, s))
                                          : all[i + 1].ticket[s] - all[i].ticket[s];
            u.ticket[s] = tickets[s];
            tickets[s] += count;
        }
        u.needs = -1;
        some.push_back(u);
    }
    some.push_back({FY_LAST, 0, 0, 0, {tickets[0], tickets[1]}});
    CHECK(cudaMemcpy(back.table.unit, some.data(), some.size() * sizeof some[0], cudaMemcpyDefault));
    fy_gpu_backward_state state;
    CHECK(cudaMemcpy(&state, back.table.state, sizeof state, cudaMemcpyDefault));
    state.units = (int)some.size() - 1;
    state.take_ticket[0] = state.take_ticket[FY_LINE_WORDS] = 0;
    state.take_pull = state.take_sum = state.take_head = 0x3fffffff;
    std::vector<float> ms, ratio;
    for (int i = 0; i < repeats + 2; i++) {
        usleep(20000);
        double rate = plain.rate(r.stream);
        usleep(20000);
        CHECK(cudaMemcpyAsync(back.table.state, &state, sizeof state, cudaMemcpyDefault, r.stream));
        CHECK(cudaEventRecord(r.begin, r.stream));
        fy_launcher to = {r.stream};
        CHECK(fy_launch_backward(&call, &back, r.engine.knobs.sms, &to));
        CHECK(cudaEventRecord(r.end, r.stream));
        CHECK(cudaStreamSynchronize(r.stream));
        float t;
        CHECK(cudaEventElapsedTime(&t, r.begin, r.end));
        if (i < 2) continue;
        ms.push_back(t);
        ratio.push_back((float)(flop / t / rate));
    }
    *of_plain = median(ratio);
    return median(ms);
}

static void run_time(const char *only, int repeats) {
    std::vector<Problem> shapes = {{"kimi-slice", 2048, 7168, 2048, 0, 6, 6, 0, "random"},
                                   {"glm5-slice", 2048, 6144, 2048, 0, 4, 4, 0, "random"},
                                   {"qwen397-slice", 2048, 4096, 1024, 0, 8, 8, 0, "random"},
                                   {"dsv4pro-slice", 2048, 7168, 3072, 0, 6, 6, 0, "random"},
                                   {"qwen3-30b-a3b", 8192, 2048, 768, 0, 128, 8, 0, "random"},
                                   {"olmoe", 8192, 2048, 1024, 0, 64, 8, 0, "random"},
                                   {"mixtral-8x7b", 8192, 4096, 14336, 0, 8, 2, 0, "random"},
                                   {"dsv3-eighth", 1024, 7168, 2048, 0, 32, 8, 0, "random"}};
    for (const Problem &p : shapes) {
        if (only && !strstr(only, p.name)) continue;
        Bench b;
        b.make(p);
        CHECK(cudaMemset(b.g, 0, b.blocks * 64 * p.I * 2));
        fill_noise<<<1024, 256>>>((__nv_bfloat16 *)b.g, b.blocks * 64 * p.I, 21, 1.0f);
        fill_noise<<<1024, 256>>>((__nv_bfloat16 *)b.u, b.blocks * 64 * p.I, 22, 1.0f);
        double unit = 2.0 * b.rows * p.H * p.I;
        static Plain plain;
        for (int f32 = 0; f32 < 2; f32++) {
            Setting c = {0, 0, -1, usual, f32 != 0, false, false, 3};
            Bench::Run r;
            b.open(r, c);
            std::vector<float> ms;
            for (int i = 0; i < repeats + 2; i++) {
                if (!b.call(r, c, i == 0)) exit(1);
                float t;
                CHECK(cudaEventElapsedTime(&t, r.begin, r.end));
                if (i >= 2) ms.push_back(t);
            }
            fy_gpu_backward_state state;
            CHECK(cudaMemcpy(&state, r.gradient.call.table.state, sizeof state, cudaMemcpyDefault));
            std::vector<fy_gpu_unit> units(state.units + 1);
            CHECK(cudaMemcpy(units.data(), r.gradient.call.table.unit, units.size() * sizeof units[0],
                             cudaMemcpyDefault));
            float all = median(ms);
            printf("%-14s %s rows %lld: all %.3f ms %.0f TFLOP/s", p.name, f32 ? "F32 " : "BF16", (long long)b.rows,
                   all, 6 * unit / all / 1e9);
            const struct {
                const char *name;
                int kind, which, units;
            } alone[4] = {
                {"grad", FY_GRAD, -1, 1}, {"dx", FY_DX, -1, 2}, {"dWg+dWu", FY_WEIGHT, 0, 2}, {"dWd", FY_WEIGHT, 2, 1}};
            for (const auto &a : alone) {
                if (f32 && a.kind != FY_WEIGHT) continue;
                float of_plain;
                float t = time_alone(r, units, a.kind, a.which, repeats, a.units * unit, plain, &of_plain);
                printf("; %s %.3f ms %.0f TFLOP/s, %.2f of plain", a.name, t, a.units * unit / t / 1e9, of_plain);
            }
            printf("\n");
            fflush(stdout);
            b.close(r);
        }
        b.drop();
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    CHECK(cudaDeviceGetAttribute(&sms_of_device, cudaDevAttrMultiProcessorCount, 0));
    std::string what = argc > 1 ? argv[1] : "check";
    if (what == "time") {
        run_time(argc > 2 ? argv[2] : nullptr, 11);
        return 0;
    }
    std::vector<Problem> problems = {{"plain", 300, 256, 192, 0, 4, 2, 0, "random"},
                                     {"ragged", 77, 200, 88, 0, 5, 3, 0, "random"},
                                     {"H8 I8", 33, 8, 8, 0, 3, 2, 0, "random"},
                                     {"shared", 200, 512, 256, 320, 8, 4, 0, "random"},
                                     {"shared holes", 130, 256, 328, 72, 8, 4, 0, "holes"},
                                     {"clamp", 200, 512, 256, 128, 8, 4, 1.0f, "random"},
                                     {"one expert", 257, 512, 256, 0, 8, 2, 0, "one"},
                                     {"few", 300, 320, 264, 40, 6, 3, 0, "few"},
                                     {"two sides", 700, 1024, 512, 0, 3, 2, 0, "random"},
                                     {"K 40", 65, 256, 128, 0, 64, 40, 0, "holes"},
                                     {"N 1", 1, 256, 128, 64, 8, 4, 0, "random"}};
    if (what == "plain") problems = {{"small", 70, 72, 88, 40, 3, 2, 0, "random"}};
    return run_check(problems) != 0;
}
