/* A thread pool for products that follow one another within microseconds.
 *
 * A job's items are claimed one by one, also by its caller, so that a thread that the system does
 * not run at the moment holds nobody up. Idle threads first spin, as the next product of a decoding
 * step comes soon, and then sleep. There is one pool in a process. A caller that finds it busy works
 * alone, so that concurrent callers never wait for each other. A forked child has no threads of its
 * parent: it starts its own. */

#include "threads.h"

#if defined(__wasm__) /* a browser has one thread for it */

void share_threads(int64_t count) { (void)count; }

void divide(Task *task, const void *context, int64_t count, int64_t threads) {
    (void)threads;
    task(context, 0, count);
}

#else

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define MAX_THREADS 16
#define MAX_ITEMS 0xffff
#define SPINS 4000 /* some tens of microseconds */

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("isb") /* "yield" waits for nothing on most of them */
#else
#define PAUSE() ((void)0)
#endif

typedef struct {
    Task *task;
    const void *context;
} Job;

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by the caller of a job */
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static Job job;                  /* changes only while no item is claimed and not done */
static int64_t started;          /* threads of the pool, the caller not counted */
static _Atomic uint64_t claims;  /* number of the job << 32 | next item << 16 | items */
static _Atomic int64_t done;     /* items of the job */
static _Atomic int64_t sleepers; /* threads that wait for `wake` */
static _Atomic int64_t callers = 1; /* that share the cores */

static int has_items(uint64_t claim) { return ((claim >> 16) & MAX_ITEMS) < (claim & MAX_ITEMS); }

/* Claim and do items of the present job until none is left. */
static void work(void) {
    uint64_t claim = atomic_load(&claims);
    while (has_items(claim)) {
        if (!atomic_compare_exchange_weak(&claims, &claim, claim + (1 << 16))) continue;
        const int64_t item = (claim >> 16) & MAX_ITEMS;
        job.task(job.context, item, item + 1);
        atomic_fetch_add(&done, 1);
        claim = atomic_load(&claims);
    }
}

static void *live(void *nothing) {
    for (int spin = 0;; spin++) {
        if (has_items(atomic_load(&claims))) {
            work();
            spin = 0;
        } else if (spin < SPINS) {
            PAUSE();
        } else {
            pthread_mutex_lock(&sleeping);
            atomic_fetch_add(&sleepers, 1);
            while (!has_items(atomic_load(&claims))) pthread_cond_wait(&wake, &sleeping);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&sleeping);
            spin = 0;
        }
    }
    return nothing;
}

/* A child of fork has this thread alone. */
static void forget(void) {
    pthread_mutex_init(&busy, 0);
    pthread_mutex_init(&sleeping, 0);
    pthread_cond_init(&wake, 0);
    started = 0;
    atomic_store(&claims, 0);
    atomic_store(&sleepers, 0);
}

/* Start threads up to `wanted`, as far as the system lets us. */
static void start(int64_t wanted) {
    static int prepared;
    if (!prepared) prepared = pthread_atfork(0, 0, forget) == 0;
    pthread_attr_t detached;
    if (!prepared || started >= wanted || pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; started < wanted; started++)
        if (pthread_create(&thread, &detached, live, 0)) break;
    pthread_attr_destroy(&detached);
}

void share_threads(int64_t count) { atomic_store(&callers, count > 0 ? count : 1); }

void divide(Task *task, const void *context, int64_t count, int64_t threads) {
    threads /= atomic_load(&callers);
    const int alone = threads < 2 || count < 2 || count > MAX_ITEMS;
    if (alone || pthread_mutex_trylock(&busy)) {
        task(context, 0, count);
        return;
    }
    start((threads < MAX_THREADS ? threads : MAX_THREADS) - 1);
    job = (Job){task, context};
    atomic_store(&done, 0);
    const uint64_t number = (atomic_load(&claims) >> 32) + 1;
    atomic_store(&claims, number << 32 | (uint64_t)count);
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&sleeping);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleeping);
    }
    work();
    for (int spin = 0; atomic_load(&done) < count; spin++)
        if (spin < SPINS)
            PAUSE();
        else
            sched_yield();
    pthread_mutex_unlock(&busy);
}

#endif
