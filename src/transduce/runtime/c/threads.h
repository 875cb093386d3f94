/* A thread pool: one product shared by several threads. */

#ifndef TRANSDUCE_THREADS
#define TRANSDUCE_THREADS

#include <stdint.h>

/* Some of a work's items, from `first` up to but not including `last`. */
typedef void Task(const void *context, int64_t first, int64_t last);

/* task(context, ...) over all of `count` items, divided evenly among `threads` threads, this one
 * included; returns when all are done. Where the pool is at work for another caller, or cannot
 * start its threads, this thread does everything: the result is the same. */
void divide(Task *task, const void *context, int64_t count, int64_t threads);

/* So many callers work side by side from now on: each divides its work among its share of the
 * threads. */
void share_threads(int64_t callers);

#endif
