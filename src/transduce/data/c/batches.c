/* Cutting rows into batches, for transduce/data/batches/bucketing.py. */

#include <stdint.h>

/* Rows of these lengths, in their order, in batches of as many rows as a budget of tokens allows,
 * padding included; of one row where that alone is longer. `bounds` has room for one number more than
 * there are rows: where each batch begins, and the end. Returns the number of batches. */
int64_t cut_batches(const int32_t *lengths, int64_t rows, int64_t tokens, int64_t *bounds) {
    int64_t batches = 0, start = 0;
    bounds[0] = 0;
    while (start < rows) {
        int64_t end = start + 1, widest = lengths[start];
        for (; end < rows; end++) {
            int64_t wider = lengths[end] > widest ? lengths[end] : widest;
            if (wider * (end + 1 - start) > tokens) break;
            widest = wider;
        }
        bounds[++batches] = start = end;
    }
    return batches;
}
