/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline as a picture: ranks below each other; of each rank, the life of every macrobatch (from its first pull
 * to its last push), then one row per worker. Colours are phases, shades are macrobatches in turn, waits are pale, and
 * what is empty is idle. Neighbouring spans of one kind that would touch are drawn as one.
 */
#include "cli/message.h"
#include "cli/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1280,
    LEFT = 92,
    RIGHT = 24,
    HEAD = 88,   /* title and legend */
    ROW = 22,    /* from one worker to the next */
    BAR = 18,    /* height of a worker's bar */
    SM_ROW = 16, /* from one multiprocessor to the next */
    LANE = 12,   /* from one lane of macrobatches to the next; neighbours are in different ones */
    LANES = 3,
    GROUP_HEAD = LANES * LANE + 8, /* above a rank's workers */
    GROUP_GAP = 18,
    FOOT = 46 /* time axis */
};

/* Even and odd macrobatches, and waits. The words of the legend name the forward's transfers. */
static const struct {
    const char *legend, *even, *odd, *wait;
} styles[FERRY_PHASE_COUNT] = {
    [FERRY_PHASE_SCHEDULE] = {"schedule", "#64748b", "#64748b", "#dfe4ea"},
    [FERRY_PHASE_PULL] = {"pull (dispatch)", "#1d5fa8", "#6cabea", "#dceafa"},
    [FERRY_PHASE_COMPUTE] = {"compute", "#dc9a26", "#f3d08a", "#fbf2df"},
    [FERRY_PHASE_PUSH] = {"push (combine)", "#b02a4c", "#ea8aa0", "#fae1e7"},
    [FERRY_PHASE_SUM] = {"sum", "#5f4ba0", "#5f4ba0", "#e7e2f5"},
};

typedef struct picture {
    FILE *file;
    const trace_job *job;
    int64_t zero_ns, end_ns;
    double px_per_ns;
    trace_span *spans;    /* room for the longest buffer */
    int64_t *life;        /* [calls * macrobatches * 2] begin and end of each macrobatch of a rank */
    int64_t macrobatches; /* most of any rank */
} picture;

static double x_of(const picture *p, int64_t ns) { return LEFT + p->px_per_ns * (double)(ns - p->zero_ns); }
static double ms_of(const picture *p, int64_t ns) { return 1e-6 * (double)(ns - p->zero_ns); }
static int group_height(const trace_log *log) {
    return GROUP_HEAD + (log->sms ? ROW + log->sms * SM_ROW : log->workers * ROW) + GROUP_GAP;
}

/* A worker's place below its rank's head. */
typedef struct row {
    double y, height;
} row;

static row row_of(const trace_log *log, int worker) {
    /* Within a multiprocessor: who feeds, who signals or chooses, the two that pull, the two that multiply. */
    static const row role[FERRY_SM_WORKERS] = {{0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 3.5}, {11.5, 3.5}};
    if (!log->sms || worker < 0) return (row){(worker + 1) * ROW, BAR};
    row r = role[worker % FERRY_SM_WORKERS];
    r.y += ROW + worker / FERRY_SM_WORKERS * SM_ROW;
    return r;
}

static void put_text(FILE *f, const char *text) {
    for (; *text; text++) {
        if (*text == '&')
            fputs("&amp;", f);
        else if (*text == '<')
            fputs("&lt;", f);
        else if (*text == '>')
            fputs("&gt;", f);
        else
            fputc(*text, f);
    }
}

/* ---- Frame ---- */

static void put_head(const picture *p, int height) {
    FILE *f = p->file;
    char title[256];
    trace_title(p->job, title, sizeof title);
    fprintf(f,
            TRACE_SVG_BEGINNING
            "%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',Arial,sans-serif\" font-size=\"11\" "
            "fill=\"#334155\">\n<style>",
            WIDTH, height, WIDTH, height);
    for (int i = 0; i < FERRY_PHASE_COUNT; i++)
        fprintf(f, ".e%d{fill:%s}.o%d{fill:%s}.w%d{fill:%s}", i, styles[i].even, i, styles[i].odd, i, styles[i].wait);
    fprintf(f, ".n{font-size:9px;text-anchor:middle;fill:#fff}.d{fill:#4a3410}.m{fill:#cbd5e1}.k{fill:#e2e8f0}"
               ".g{stroke:#e2e8f0}.r{text-anchor:end;fill:#64748b}</style>\n"
               "<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"#fff\"/>\n");
    fprintf(f, "<text x=\"20\" y=\"28\" font-size=\"15\" font-weight=\"600\" fill=\"#0f172a\">%s</text>\n",
            p->job->options->backward ? "ferry trace: forward and backward" : "ferry trace: forward");
    fprintf(f, "<text x=\"20\" y=\"46\">");
    put_text(f, title);
    fprintf(f, "</text>\n");
}

static void put_legend(const picture *p) {
    FILE *f = p->file;
    double x = 20, y = 60;
    for (int i = 0; i < FERRY_PHASE_COUNT; i++) {
        fprintf(f, "<rect class=\"e%d\" x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\"/>", i, x, y);
        fprintf(f, "<rect class=\"o%d\" x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\"/>", i, x + 12, y);
        fprintf(f, "<rect class=\"w%d\" x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\"/>", i, x + 24, y);
        fprintf(f, "<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", x + 42, y + 10, styles[i].legend);
        x += 62 + 6.2 * (double)strlen(styles[i].legend);
    }
    fprintf(f,
            "<text x=\"%d\" y=\"%.0f\" class=\"r\">dark: even macrobatches, light: odd, pale: waiting, empty: "
            "idle</text>\n",
            WIDTH - RIGHT, y + 10);
}

/* 1, 2 or 5 times a power of ten, near the tenth of the whole. */
static double tick_ms(double whole_ms) {
    double rough = whole_ms / 10, power = pow(10, floor(log10(rough)));
    return power * (rough > 5 * power ? 10 : rough > 2 * power ? 5 : rough > power ? 2 : 1);
}

static void put_axis(const picture *p, int top, int bottom) {
    double whole = ms_of(p, p->end_ns), step = tick_ms(whole);
    int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    for (int i = 0; i * step <= whole; i++) {
        double x = LEFT + p->px_per_ns * 1e6 * i * step;
        fprintf(p->file,
                "<path class=\"g\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.*f</text>\n",
                x, top, bottom, x, bottom + 16, digits, i * step);
    }
    fprintf(p->file, "<text x=\"%d\" y=\"%d\" class=\"r\">ms</text>\n", LEFT - 10, bottom + 16);
}

/* ---- Spans ---- */

static int alike(const trace_event *a, const trace_event *b) {
    return a->phase == b->phase && a->wait == b->wait && a->backward == b->backward && a->macrobatch == b->macrobatch &&
           a->step == b->step && strcmp(a->what, b->what) == 0;
}

/* `units` spans of one kind from `s`'s begin to end_ns. `named` is the macrobatch whose number was last drawn. */
static void put_bar(const picture *p, const trace_span *s, int64_t end_ns, int64_t units, row at, int *named) {
    const trace_event *e = s->event;
    FILE *f = p->file;
    double x = x_of(p, s->begin_ns), width = x_of(p, end_ns) - x;
    double drawn = width > 2.5 ? width - 0.5 : width > 0.5 ? width : 0.5; /* a hair between neighbours */
    double inset = s->depth > 0 && at.height == BAR ? 5 : 0;
    char kind = e->wait ? 'w' : e->macrobatch > 0 && e->macrobatch % 2 ? 'o' : 'e';
    fprintf(f, "<rect class=\"%c%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\">", kind, e->phase, x,
            at.y + inset, drawn, at.height - 2 * inset);
    if (width < 1 && at.height < BAR) { /* too small for a pointer, and there are many on a GPU */
        fputs("</rect>\n", f);
        return;
    }
    fputs("<title>", f);
    if (e->wait) fputs("waits for: ", f);
    put_text(f, e->what);
    if (e->macrobatch >= 0) fprintf(f, "\nmacrobatch %d, step %d", e->macrobatch, e->step);
    if (units > 1) fprintf(f, "\n%" PRId64 " units", units);
    fprintf(f, "\n%.4f to %.4f ms</title></rect>\n", ms_of(p, s->begin_ns), ms_of(p, end_ns));
    if (e->wait || e->macrobatch < 0 || e->macrobatch == *named || width < (e->macrobatch > 9 ? 16 : 10) ||
        at.height < BAR)
        return;
    *named = e->macrobatch;
    fprintf(f, "<text class=\"n%s\" x=\"%.2f\" y=\"%.0f\">%d</text>\n", e->phase == FERRY_PHASE_COMPUTE ? " d" : "",
            x + width / 2, at.y + BAR - 6, e->macrobatch);
}

/* The name of a worker, of a multiprocessor before its first one, and the ground of its bars. */
static void put_ground(const picture *p, int worker, double y) {
    const trace_log *log = &p->job->log;
    int sm = log->sms && worker >= 0;
    char name[64];
    if (sm && worker % FERRY_SM_WORKERS) return;
    trace_worker_name(log, worker, name, sizeof name);
    if (sm) snprintf(name, sizeof name, "SM %d", worker / FERRY_SM_WORKERS);
    fprintf(p->file,
            "<text x=\"%d\" y=\"%.0f\" class=\"r\">%s</text><rect x=\"%d\" y=\"%.0f\" width=\"%d\" height=\"%d\" "
            "fill=\"#f4f6f8\"/>\n",
            LEFT - 10, y + (sm ? SM_ROW : BAR) - 5, name, LEFT, y, WIDTH - LEFT - RIGHT, sm ? SM_ROW - 1 : BAR);
}

static void put_worker(const picture *p, int rank, int worker, double top) {
    const trace_buffer *b = trace_buffer_of(&p->job->log, rank, worker);
    row at = row_of(&p->job->log, worker);
    at.y += top;
    put_ground(p, worker, at.y);
    int64_t count = trace_spans(b, p->end_ns, p->spans), next;
    int named = -1;
    for (int depth = 0; depth < 2; depth++) {
        for (int64_t i = 0; i < count; i = next) {
            next = i + 1;
            if (p->spans[i].depth != depth) continue;
            int64_t end_ns = p->spans[i].end_ns, units = 1;
            for (; next < count; next++) {
                const trace_span *other = &p->spans[next];
                if (other->depth != depth) continue;
                double gap = p->px_per_ns * (double)(other->begin_ns - end_ns);
                if (gap > 0.5 || !alike(other->event, p->spans[i].event)) break;
                end_ns = other->end_ns;
                units++;
            }
            put_bar(p, &p->spans[i], end_ns, units, at, &named);
        }
    }
}

/* ---- Macrobatches ---- */

static void find_lives(const picture *p, int rank) {
    for (int64_t i = 0; i < 2 * p->macrobatches; i++) {
        p->life[2 * i] = INT64_MAX;
        p->life[2 * i + 1] = INT64_MIN;
    }
    for (int worker = -1; worker < p->job->log.workers - 1; worker++) {
        const trace_buffer *b = trace_buffer_of(&p->job->log, rank, worker);
        for (int64_t i = 0; i < b->count; i++) {
            const trace_event *e = &b->events[i];
            if (e->macrobatch < 0 || e->wait) continue;
            int64_t *life = p->life + 2 * (e->backward * p->macrobatches + e->macrobatch);
            if (e->ns < life[0]) life[0] = e->ns;
            if (e->ns > life[1]) life[1] = e->ns;
        }
    }
}

static void put_lives(const picture *p, double y) {
    for (int64_t i = 0; i < 2 * p->macrobatches; i++) {
        int64_t m = i % p->macrobatches, begin = p->life[2 * i], end = p->life[2 * i + 1];
        if (begin > end) continue;
        double x = x_of(p, begin), width = x_of(p, end) - x, lane = y + (double)(m % LANES) * LANE;
        fprintf(p->file,
                "<rect class=\"%s\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\" rx=\"3\"><title>macrobatch "
                "%" PRId64 "\n%.4f to %.4f ms</title></rect>\n",
                m % 2 ? "k" : "m", x, lane, width > 1 ? width : 1, LANE - 1, m, ms_of(p, begin), ms_of(p, end));
        if (width < 16) continue;
        fprintf(p->file, "<text x=\"%.2f\" y=\"%.0f\" font-size=\"9\" text-anchor=\"middle\">%s%" PRId64 "</text>\n",
                x + width / 2, lane + LANE - 3.5, width > 80 ? "macrobatch " : "", m);
    }
}

static void put_rank(const picture *p, int rank, double y) {
    fprintf(p->file, "<text x=\"20\" y=\"%.0f\" font-weight=\"600\" fill=\"#0f172a\">rank %d</text>\n", y + 18, rank);
    find_lives(p, rank);
    put_lives(p, y);
    for (int worker = -1; worker < p->job->log.workers - 1; worker++) put_worker(p, rank, worker, y + GROUP_HEAD);
}

static int prepare(picture *p) {
    const trace_log *log = &p->job->log;
    int64_t longest = 0;
    if (trace_log_extent(log, &p->zero_ns, &p->end_ns)) p->zero_ns = p->end_ns = 0;
    if (p->end_ns == p->zero_ns) p->end_ns++;
    p->px_per_ns = (double)(WIDTH - LEFT - RIGHT) / (double)(p->end_ns - p->zero_ns);
    for (int i = 0; i < log->nranks * log->workers; i++) {
        const trace_buffer *b = &log->buffers[i];
        if (b->count > longest) longest = b->count;
        for (int64_t k = 0; k < b->count; k++)
            if (b->events[k].macrobatch >= p->macrobatches) p->macrobatches = b->events[k].macrobatch + 1;
    }
    p->spans = malloc(((size_t)longest + 1) * sizeof *p->spans);
    p->life = malloc((4 * (size_t)p->macrobatches + 1) * sizeof *p->life);
    return p->spans && p->life ? CLI_OK : cli_fail("no memory for the picture");
}

static int draw(picture *p, const char *path) {
    const trace_log *log = &p->job->log;
    int bottom = HEAD + log->nranks * group_height(log) - GROUP_GAP + 6;
    p->file = fopen(path, "w");
    if (!p->file) return cli_fail("%s: cannot be written: %s", path, strerror(errno));
    put_head(p, bottom + FOOT - 16);
    put_legend(p);
    put_axis(p, HEAD, bottom);
    for (int rank = 0; rank < log->nranks; rank++) put_rank(p, rank, HEAD + rank * group_height(log));
    fputs("</svg>\n", p->file);
    int bad = ferror(p->file);
    bad |= fclose(p->file) != 0;
    return bad ? cli_fail("%s: cannot be written: %s", path, strerror(errno)) : CLI_OK;
}

int trace_write_svg(const trace_job *job, const char *path) {
    picture p = {.job = job};
    int code = prepare(&p);
    if (!code) code = draw(&p, path);
    free(p.spans);
    free(p.life);
    return code;
}
