// What Python calls, by ctypes. Chooses the instruction set when it is asked for.

#include <cstring>

#include "quire_cpu.h"

#if defined(__x86_64__)
static bool runs(const Kernels* k) {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (k == &kernels_avx2) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static const Kernels* const all[] = {&kernels_avx512, &kernels_avx2};  // best first
#else
static bool runs(const Kernels*) { return false; }
static const Kernels* const all[] = {nullptr};
#endif

static const Kernels* chosen = nullptr;

#pragma GCC visibility push(default)
extern "C" {

// Takes the best kernels that run here, or those of a name. Returns their name, null for none.
const char* quire_cpu_choose(const char* name) {
    for (const Kernels* k : all)
        if (k && runs(k) && (!name || !std::strcmp(name, k->name))) return (chosen = k)->name;
    return nullptr;
}

void quire_cpu_rms_norm(const RmsNormArgs* args) { chosen->rms_norm(*args); }
void quire_cpu_finite_rows(const RowsArgs* args) { chosen->finite_rows(*args); }
void quire_cpu_highest(const RowsArgs* args) { chosen->highest(*args); }
void quire_cpu_block_maxima(const RowsArgs* args) { chosen->block_maxima(*args); }
void quire_cpu_block_masses(const RowsArgs* args) { chosen->block_masses(*args); }
void quire_cpu_linear(const LinearArgs* args) { chosen->linear(*args); }

}  // extern "C"
#pragma GCC visibility pop
