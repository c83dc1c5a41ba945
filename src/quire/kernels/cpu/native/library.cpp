// What Python calls, by ctypes. Chooses the instruction set when it is asked for.

#include <cstring>
#include <iterator>

#include "quire_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_avx_vnni() {  // which GCC 12 has no name for here
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
static bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

static bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
// Sapphire Rapids and later ones of Intel, told by their half precision, take twice as long for a dot
// product of pairs as for the multiply-adds in its place, and AMX may be kept from a guest.
static bool has_slow_pairs() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
}
// Tiles are large, so the system keeps them only for processes that ask.
static bool has_amx() {
#ifdef SYS_arch_prctl
    constexpr int ask_for_state = 0x1023, tiles = 18;
    unsigned a, b, c, d;
    return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) &&
           (d >> 24 & 1) && (d >> 25 & 1) && syscall(SYS_arch_prctl, ask_for_state, tiles) == 0;
#else
    return false;
#endif
}

struct Set {
    const char* name;
    bool (*runs)();
    const Kernels* kernels;
    void (*linear_int)(const LinearArgs&);   // in place of theirs
    void (*linear_bf16)(const LinearArgs&);  // in place of `linear` for that format
    Prompts (*prompts)(const AttentionArgs&) = nullptr;  // in place of theirs, where it serves
    bool (*is_slow)() = nullptr;  // then it is taken by name alone
};
static const Set all[] = {  // best first
    {"amx", has_amx, &kernels_avx512, linear_int_amx, linear_bf16_amx, prompts_amx},
    {"avx512_bf16", has_avx512_bf16, &kernels_avx512, linear_int_avx512_vnni, linear_avx512_bf16,
     prompts_avx512_bf16, has_slow_pairs},
    {"avx512_vnni", has_avx512_vnni, &kernels_avx512, linear_int_avx512_vnni, nullptr},
    {"avx512", has_avx512, &kernels_avx512, nullptr, nullptr},
    {"avx2_vnni", has_avx_vnni, &kernels_avx2, linear_int_avx2_vnni, nullptr},
    {"avx2", has_avx2, &kernels_avx2, nullptr, nullptr},
};

static const Kernels* take(const char* name) {
    static Kernels complete[std::size(all)];  // other threads may run what was chosen before
    __builtin_cpu_init();
    for (const Set& set : all) {
        if (!set.runs() || (name ? std::strcmp(name, set.name) != 0 : set.is_slow && set.is_slow()))
            continue;
        Kernels taken = *set.kernels;
        taken.name = set.name;
        if (set.linear_int) taken.linear_int = set.linear_int;
        taken.prompts = set.prompts;
        taken.linear_bf16 = set.linear_bf16 ? set.linear_bf16 : taken.linear;
        return &(complete[&set - all] = taken);
    }
    return nullptr;
}
#else
static const Kernels* take(const char*) { return nullptr; }
#endif

static const Kernels* chosen = nullptr;

#pragma GCC visibility push(default)
extern "C" {

// The number of the interface that this was built with.
int32_t quire_cpu_interface() { return INTERFACE; }

// Takes the best kernels that run here, or those of a name. Returns their name, null for none.
const char* quire_cpu_choose(const char* name) {
    const Kernels* taken = take(name);
    if (!taken) return nullptr;
    return (chosen = taken)->name;
}

void quire_cpu_rms_norm(const RmsNormArgs* args) { chosen->rms_norm(*args); }
void quire_cpu_finite_rows(const RowsArgs* args) { chosen->finite_rows(*args); }
void quire_cpu_to_float(const RowsArgs* args) { chosen->to_float(*args); }
void quire_cpu_highest(const RowsArgs* args) { chosen->highest(*args); }
void quire_cpu_block_maxima(const RowsArgs* args) { chosen->block_maxima(*args); }
void quire_cpu_block_masses(const RowsArgs* args) { chosen->block_masses(*args); }
void quire_cpu_linear(const LinearArgs* args) { run_linear(*chosen, *args); }
void quire_cpu_layers(const LayersArgs* args) { run_layers(*chosen, *args); }
void quire_cpu_quantize(const QuantizeArgs* args) { chosen->quantize(*args); }
void quire_cpu_pack(const PackArgs* args) { pack_weight(*args); }
void quire_cpu_rotary_write_kv(const RotaryArgs* args) { chosen->rotary_write_kv(*args); }
void quire_cpu_attention(const AttentionArgs* args) { run_attention(*chosen, *args); }

// For tests: e^x of `count` numbers, a multiple of 16.
void quire_cpu_exp(const float* x, float* out, int64_t count) { chosen->exp(x, out, count); }

}  // extern "C"
#pragma GCC visibility pop
