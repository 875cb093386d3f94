/* Continuous batching: greedy and beam search over slots, some steps in one call.
 *
 * Each slot has a sentence at a step of its own. The rules of search are those of
 * decoding/search/beam.py, and greedy search is a beam of one that stops at its first end. */

#include <math.h>
#include <stddef.h>
#include <time.h>

#include "stack.h"

typedef struct {
    int64_t slots, beam, nbest, target; /* target: the maximum length of any output */
    int64_t vocabulary, pad, begin, end;
    int64_t min_length, max_finished; /* finished hypotheses after which a slot stops, or 0 */
    const float *penalties; /* of lengths from 0 to target + 1 */
    /* Of each slot: whether it has work, its step, its maximum length, finished hypotheses. */
    int32_t *open;
    int64_t *steps, *limits, *finished;
    /* Of each hypothesis [slots][beam]: its log-probability, -INFINITY where there is none, its last
     * token and all of them [target]. */
    float *reached;
    int64_t *last;
    int32_t *written;
    /* Of each finished hypothesis that is kept [slots][nbest], best first: score, log-probability
     * and tokens [target]. */
    float *scores, *totals;
    int32_t *found;
    /* Of each row of a step [slots x beam]: its place, step and token; then its best tokens and
     * their log-probabilities [2 x beam]. */
    int64_t *row, *row_step, *row_token;
    float *best;
    int64_t *best_token;
    int32_t *old; /* scratch [2][beam][target] */
} Slots;

void find_best(const float *scores, int64_t rows, int64_t count, int64_t wanted, float *found,
               int64_t *places);

#define MAX_BEAM 64

/* The two halves of a search's step, for any decoder that gives log-probabilities between them: the
 * hypotheses to extend, as the rows of a step (returns how many there are), and their best
 * extensions. A row's place is slot x beam + hypothesis; after a step, `origins` has the place at
 * which each past step of a hypothesis was written. */
int64_t next_rows(const Slots *s, Step *step);
void end_step(const Slots *s, Step *step);

int64_t next_rows(const Slots *s, Step *step) {
    int64_t rows = 0;
    step->step = 0;
    for (int64_t b = 0; b < s->slots; b++) {
        if (!s->open[b]) continue;
        if (s->steps[b] > step->step) step->step = s->steps[b];
        for (int64_t n = b * s->beam; n < (b + 1) * s->beam; n++) {
            if (s->reached[n] == -INFINITY) continue;
            s->row[rows] = n;
            s->row_step[rows] = s->steps[b];
            s->row_token[rows++] = s->last[n];
        }
    }
    step->rows = rows;
    step->slots = s->row;
    step->steps = s->row_step;
    step->tokens = s->row_token;
    return rows;
}

/* -INFINITY where a token is not allowed: before the minimum length, and at the maximum. */
static void restrict_row(const Slots *s, int64_t row, float *log_probs) {
    const int64_t b = s->row[row] / s->beam, length = s->steps[b] + 1;
    const float end = length < s->min_length ? -INFINITY : log_probs[s->end];
    if (length >= s->limits[b])
        for (int64_t v = 0; v < s->vocabulary; v++) log_probs[v] = -INFINITY;
    log_probs[s->pad] = log_probs[s->begin] = -INFINITY;
    log_probs[s->end] = end;
}

typedef struct {
    float score;
    int64_t parent, token;
} Candidate;

/* The best 2 x beam candidates to go on, best first; of equal ones the first. Returns how many. */
static int64_t best_candidates(const Slots *s, int64_t b, int64_t *row, int64_t each,
                               Candidate *best) {
    const int64_t wanted = 2 * s->beam;
    int64_t count = 0;
    for (int64_t n = 0; n < s->beam; n++) {
        const float reached = s->reached[b * s->beam + n];
        if (reached == -INFINITY) continue;
        for (int64_t c = 0; c < each; c++) {
            const float score = s->best[*row * each + c] + reached;
            if (score == -INFINITY || (count == wanted && score <= best[count - 1].score)) break;
            int64_t at = count < wanted ? count++ : count - 1;
            for (; at > 0 && score > best[at - 1].score; at--) best[at] = best[at - 1];
            best[at] = (Candidate){score, n, s->best_token[*row * each + c]};
        }
        (*row)++;
    }
    return count;
}

/* Keep a hypothesis that has ended, if it is among the best. */
static void keep(const Slots *s, int64_t b, const Candidate *candidate) {
    const int64_t step = s->steps[b];
    float *scores = s->scores + b * s->nbest, *totals = s->totals + b * s->nbest;
    int32_t *found = s->found + b * s->nbest * s->target;
    const float score = candidate->score / s->penalties[step + 1];
    int64_t at = s->nbest - 1;
    if (!(score > scores[at])) return;
    for (; at > 0 && score > scores[at - 1]; at--) {
        scores[at] = scores[at - 1];
        totals[at] = totals[at - 1];
        memcpy(found + at * s->target, found + (at - 1) * s->target, sizeof(int32_t) * (size_t)s->target);
    }
    scores[at] = score;
    totals[at] = candidate->score;
    memcpy(found + at * s->target, s->written + (b * s->beam + candidate->parent) * s->target,
           sizeof(int32_t) * (size_t)step);
    found[at * s->target + step] = (int32_t)s->end;
}

/* Hypotheses take the place of others: what they have written, and where their past is. */
static void move(const Slots *s, const Step *step, int64_t b, const Candidate *candidates,
                 int64_t count) {
    const int64_t now = s->steps[b], T = s->target, apart = 1 + step->max_steps;
    int32_t *written = s->written + b * s->beam * T;
    int32_t *origins = step->origins + b * s->beam * apart + 1;
    const size_t past = sizeof(int32_t) * (size_t)now, all = sizeof(int32_t) * (size_t)(now + 1);
    for (int64_t n = 0; n < s->beam; n++) {
        memcpy(s->old + n * T, written + n * T, past);
        memcpy(s->old + (s->beam + n) * T, origins + n * apart, all);
    }
    for (int64_t n = 0; n < count; n++) {
        memcpy(written + n * T, s->old + candidates[n].parent * T, past);
        memcpy(origins + n * apart, s->old + (s->beam + candidates[n].parent) * T, all);
        written[n * T + now] = (int32_t)candidates[n].token;
        s->last[b * s->beam + n] = candidates[n].token;
    }
}

/* The step of one slot after its log-probabilities; `row` is the next of all rows. */
static void choose(const Slots *s, const Step *step, int64_t b, int64_t *row, int64_t each) {
    Candidate candidates[2 * MAX_BEAM];
    const int64_t now = s->steps[b], count = best_candidates(s, b, row, each, candidates);
    float *reached = s->reached + b * s->beam;
    int64_t going = 0;
    /* An end counts only in the better half, so that a beam of 1 equals greedy search. */
    for (int64_t c = 0; c < count; c++)
        if (candidates[c].token != s->end) {
            if (going < s->beam) candidates[going++] = candidates[c];
        } else if (c < s->beam) {
            keep(s, b, &candidates[c]);
            s->finished[b]++;
        }
    move(s, step, b, candidates, going);
    const float at_limit = s->penalties[s->limits[b]], next = s->penalties[now + 2];
    const float mildest = at_limit > next ? at_limit : next;
    const float worst = s->scores[(b + 1) * s->nbest - 1];
    float hope = -INFINITY;
    for (int64_t n = 0; n < s->beam; n++) {
        reached[n] = n < going ? candidates[n].score : -INFINITY;
        if (reached[n] / mildest > hope) hope = reached[n] / mildest;
        if (reached[n] / mildest <= worst) reached[n] = -INFINITY; /* it cannot be kept any more */
    }
    const int done = s->max_finished && s->finished[b] >= s->max_finished;
    s->open[b] = !(done || worst >= hope || now + 1 >= s->limits[b]);
    s->steps[b]++;
}

void end_step(const Slots *s, Step *step) {
    const int64_t each = 2 * s->beam < s->vocabulary ? 2 * s->beam : s->vocabulary;
    for (int64_t r = 0; r < step->rows; r++)
        restrict_row(s, r, step->log_probs + r * s->vocabulary);
    find_best(step->log_probs, step->rows, s->vocabulary, each, s->best, s->best_token);
    for (int64_t b = 0, row = 0; b < s->slots; b++)
        if (s->open[b]) choose(s, step, b, &row, each);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Steps of all slots with work, until so many are done and so much time has passed, or none is left.
 * The caller has set what does not change from step to step. */
void advance_slots(const Stack *stack, Step *step, const Slots *s, int64_t steps, double seconds) {
    const double until = seconds_now() + seconds;
    do {
        if (!next_rows(s, step)) return;
        decoder_step(stack, step);
        if (step->refused) return;
        end_step(s, step);
    } while (--steps > 0 || seconds_now() < until);
}

#define AT(field) (int64_t)offsetof(Slots, field)
const int64_t slots_layout[] = {
    sizeof(Slots), AT(slots), AT(beam), AT(nbest), AT(target), AT(vocabulary), AT(pad), AT(begin),
    AT(end), AT(min_length), AT(max_finished), AT(penalties), AT(open), AT(steps), AT(limits),
    AT(finished), AT(reached), AT(last), AT(written), AT(scores), AT(totals), AT(found), AT(row), AT(row_step),
    AT(row_token), AT(best), AT(best_token), AT(old),
};

int64_t slots_layout_length(void) { return (int64_t)(sizeof slots_layout / sizeof slots_layout[0]); }
