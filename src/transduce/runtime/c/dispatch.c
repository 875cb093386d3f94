/* Which variants of the library this CPU runs; compiled for the oldest CPU of its kind. */

#include <stdint.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

typedef struct {
    const char *name;
    int (*runs_here)(void);
} Variant;

static inline int always(void) { return 1; }

/* CMakeLists.txt compiles each variant with the features that are asked for here, and defines
 * HAS_ and its name if the compiler knows them. */

#if defined(HAS_AVX2)
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#if defined(HAS_AVX512)
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#if defined(HAS_VNNI)
static int has_vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif

#if defined(HAS_AMX)
/* Compilers do not know these by name. Whether the system lets a process use the tiles is asked in
 * products.c, which otherwise does without them. */
static int has_amx(void) {
    unsigned a, b, c, d;
    const unsigned tile = 1u << 24, int8 = 1u << 25;
    return has_vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile) && (d & int8);
}
#endif

#if defined(HAS_DOTPROD)
static int has_dotprod(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & (1ul << 20)) != 0; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, 0, 0) == 0 && found;
#else
    return 0;
#endif
}
#endif

static const Variant variants[] = {
#if defined(HAS_AMX)
    {"amx", has_amx},
#endif
#if defined(HAS_VNNI)
    {"vnni", has_vnni},
#endif
#if defined(HAS_AVX512)
    {"avx512", has_avx512},
#endif
#if defined(HAS_AVX2)
    {"avx2", has_avx2},
#endif
#if defined(HAS_DOTPROD)
    {"dotprod", has_dotprod},
#endif
    {"baseline", always},
};

/* The name of the variant with this number, of those that this CPU runs, the best first; NULL after
 * the last. */
const char *variant_name(int64_t number) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
#endif
    for (uint64_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (variants[i].runs_here() && number-- == 0) return variants[i].name;
    return 0;
}
