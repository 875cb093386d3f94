/* Top-k of a row of scores. */

#include <math.h>

#include "variant.h"
#include "vectors.h"

#define AT_ONCE 8 /* SIMD vectors that are scanned together */

/* Insert into a list of scores in descending order; the last drops out if the list is full. */
static void insert(float *scores, int64_t *places, int64_t last, float score, int64_t place) {
    int64_t at = last;
    for (; at > 0 && score > scores[at - 1]; at--) {
        scores[at] = scores[at - 1];
        places[at] = places[at - 1];
    }
    scores[at] = score;
    places[at] = place;
}

/* Maximum of a vector; if an element is NaN, the result is NaN or the maximum of the others. */
static float highest_of(const float *scores) {
    Vector most = all(-INFINITY);
    /* If the first operand is NaN, CPUs that do not propagate it return the second. */
    for (int v = 0; v < AT_ONCE; v++) most = higher(load(scores + v * LANES), most);
    return highest(most);
}

/* NaN counts as -INFINITY. */
static float number(float score) { return score == score ? score : -INFINITY; }

/* The highest scores of each row and their indices, best first; of equal scores the one with
 * the lower index. */
void find_best(const float *scores, int64_t rows, int64_t count, int64_t wanted, float *found,
               int64_t *places) {
    const int64_t last = wanted - 1, many = AT_ONCE * LANES;
    for (int64_t r = 0; r < rows; r++, scores += count, found += wanted, places += wanted) {
        int64_t i = 0;
        for (; i < wanted; i++) insert(found, places, i, number(scores[i]), i);
        while (i < count) {
            const int64_t end = i + many < count ? i + many : count;
            if (end - i == many && highest_of(scores + i) <= found[last]) i = end;
            for (; i < end; i++)
                if (scores[i] > found[last]) insert(found, places, last, scores[i], i);
        }
    }
}
