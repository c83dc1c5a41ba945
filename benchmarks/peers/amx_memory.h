// Included before all of llama.cpp's C++ files. GCC's intrinsics do not tell what memory tiles are
// configured and loaded from; GCC 12 drops those stores, and the first product by AMX crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg (%0)" ::"r"((const void *)(config)) : "memory")

#undef _tile_loadd_internal
#define _tile_loadd_internal(tile, base, stride)                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile          \
                     ::"r"((const void *)(base)), "r"((long)(stride)) : "memory")
#endif
