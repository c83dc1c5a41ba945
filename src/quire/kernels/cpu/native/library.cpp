// What Python calls, by ctypes. Chooses the instruction set when it is asked for.

#include <atomic>
#include <cstring>

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

// The kernels of an instruction set: a base, and what takes the place of some; null for nothing.
static Kernels with(Kernels base, const char* name, void (*linear_int)(const LinearArgs&) = nullptr,
                    void (*linear_bf16)(const LinearArgs&) = nullptr,
                    Prompts (*prompts)(const AttentionArgs&) = nullptr) {
    base.name = name;
    if (linear_int) base.linear_int = linear_int;
    base.linear_bf16 = linear_bf16 ? linear_bf16 : base.linear;
    base.prompts = prompts;
    return base;
}

struct Set {
    bool (*runs)();
    Kernels kernels;
    bool (*is_slow)() = nullptr;  // then it is taken by name alone
};
static const Set all[] = {  // best first
    {has_amx, with(kernels_avx512, "amx", linear_int_amx, linear_bf16_amx, prompts_amx)},
    {has_avx512_bf16, with(kernels_avx512, "avx512_bf16", linear_int_avx512_vnni, linear_avx512_bf16,
                           prompts_avx512_bf16), has_slow_pairs},
    {has_avx512_vnni, with(kernels_avx512, "avx512_vnni", linear_int_avx512_vnni)},
    {has_avx512, with(kernels_avx512, "avx512")},
    {has_avx_vnni, with(kernels_avx2, "avx2_vnni", linear_int_avx2_vnni)},
    {has_avx2, with(kernels_avx2, "avx2")},
};

static const Kernels* take(const char* name) {
    __builtin_cpu_init();
    for (const Set& set : all) {  // what is not wanted is not asked for: tiles change the process
        const bool is_wanted =
            name ? std::strcmp(name, set.kernels.name) == 0 : !(set.is_slow && set.is_slow());
        if (is_wanted && set.runs()) return &set.kernels;
    }
    return nullptr;
}
#else
static const Kernels* take(const char*) { return nullptr; }
#endif

// Atomic, as a choice may come while other threads run what was chosen before.
static std::atomic<const Kernels*> chosen = nullptr;
static const Kernels& kernels() { return *chosen.load(std::memory_order_relaxed); }

#pragma GCC visibility push(default)
extern "C" {

// The number of the interface that this was built with.
int32_t quire_cpu_interface() { return INTERFACE; }

// Takes the best kernels that run here, or those of a name. Returns their name, null for none.
const char* quire_cpu_choose(const char* name) {
    const Kernels* taken = take(name);
    if (!taken) return nullptr;
    chosen.store(taken, std::memory_order_relaxed);
    return taken->name;
}

void quire_cpu_rms_norm(const RmsNormArgs* args) { kernels().rms_norm(*args); }
void quire_cpu_finite_rows(const RowsArgs* args) { kernels().finite_rows(*args); }
void quire_cpu_to_float(const RowsArgs* args) { kernels().to_float(*args); }
void quire_cpu_highest(const RowsArgs* args) { kernels().highest(*args); }
void quire_cpu_block_maxima(const RowsArgs* args) { kernels().block_maxima(*args); }
void quire_cpu_block_masses(const RowsArgs* args) { kernels().block_masses(*args); }
void quire_cpu_linear(const LinearArgs* args) { run_linear(kernels(), *args); }
void quire_cpu_layers(const LayersArgs* args) { run_layers(kernels(), *args); }
void quire_cpu_quantize(const QuantizeArgs* args) { kernels().quantize(*args); }
void quire_cpu_pack(const PackArgs* args) { pack_weight(*args); }
void quire_cpu_rotary_write_kv(const RotaryArgs* args) { kernels().rotary_write_kv(*args); }
void quire_cpu_attention(const AttentionArgs* args) { run_attention(kernels(), *args); }

// For tests: e^x of `count` numbers, a multiple of 16.
void quire_cpu_exp(const float* x, float* out, int64_t count) { kernels().exp(x, out, count); }

}  // extern "C"
#pragma GCC visibility pop
