// Rounds weights to 8 or 4 bits, exactly as kernels/reference_quantized.py does. Included inside a
// namespace, after dot512.h or dot256.h. Runs once per weight, while a model is loaded.

inline void store_bytes(F32 a, int8_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes_of(a));
}

// Codes and scales of some rows, as kernels/operands.py describes.
struct Rounded {
    uint8_t* codes;
    void* scale;
};

template <typename T>
void quantize_row8(const QuantizeArgs& a, int64_t row, Rounded out) {
    const T* w = static_cast<const T*>(a.weight) + row * a.k;
    int8_t* codes = reinterpret_cast<int8_t*>(out.codes);
    thread_local Scratch scratch;
    float* const rotated = scratch.get<float>(a.k);
    const int64_t size = hadamard_size(a.format, a.k);
    const F32 share = F32::all(1.0f / static_cast<float>(size));
    const auto at = [&](int64_t i) { return F32::load(w + i); };
    const float largest = magnitude(rotate_row(a.k, size, at, rotated) * share);
    const float scale = largest == 0.0f ? 1.0f : largest / 127.0f;
    for (int64_t i = 0; i < a.k; i += 16)
        store_bytes(F32::load(rotated + i) * share / F32::all(scale), codes + i);
    *static_cast<float*>(out.scale) = scale;
}

// The number of the largest magnitude with its sign, the first of several.
inline float largest_of(const float* w, int64_t count) {
    F32 larger = F32::zero(), above = F32::load(w), below = F32::zero() - above;
    for (int64_t i = 0; i < count; i += 16) {
        const F32 number = F32::load(w + i);
        larger = max_magnitude(larger, number);
        above = max(above, number), below = max(below, F32::zero() - number);
    }
    const float largest = magnitude(larger);
    const bool positive = above.max() == largest, negative = below.max() == largest;
    if (positive != negative) return positive ? largest : -largest;
    for (int64_t i = 0; i < count; ++i)
        if (std::fabs(w[i]) == largest) return w[i];
    return largest;  // no number
}

// The scale by which the codes of a group come closest to it, and by how much of its squares' sum;
// the scale that gives the codes, if that is no number or zero.
struct Fit {
    float scale, gain;
};
inline Fit fitted(const float* group, int64_t count, float scale) {
    scale = _cvtsh_ss(_cvtss_sh(scale, 0));
    if (scale == 0.0f || !std::isfinite(scale)) return {scale, 0.0f};
    const F32 inverse = F32::all(1.0f / scale), least = F32::all(-8.0f), most = F32::all(7.0f);
    F32 products = F32::zero(), squares = F32::zero();
    for (int64_t i = 0; i < count; i += 16) {
        const F32 number = F32::load(group + i);
        const F32 code = min(max(round(number * inverse), least), most);
        products = products + code * number;
        squares = squares + code * code;
    }
    const float product = products.sum(), best = product / squares.sum();
    return {best, product * best};
}

template <typename T>
void quantize_row4(const QuantizeArgs& a, int64_t row, Rounded out) {
    thread_local Scratch scratch;
    float* const group = scratch.get<float>(a.group);
    const bool rotates = a.format == Format::int4_hadamard;
    const F32 share = F32::all(rotates ? 1.0f / 32 : 1.0f);
    const T* w = static_cast<const T*>(a.weight) + row * a.k;
    uint8_t* codes = out.codes;
    uint16_t* scales = static_cast<uint16_t*>(out.scale);
    for (int64_t k = 0; k < a.k; k += a.group, w += a.group) {
        for (int64_t i = 0; i < a.group; i += 32) {
            F32 first = F32::load(w + i), second = F32::load(w + i + 16);
            if (rotates) hadamard32(first, second);
            (first * share).store(group + i), (second * share).store(group + i + 16);
        }
        const float largest = largest_of(group, a.group);
        Fit best = fitted(group, a.group, largest / -8.0f);
        for (const float code : {-8.5f, -7.2f}) {
            const Fit other = fitted(group, a.group, largest / code);
            if (other.gain > best.gain) best = other;
        }
        const uint16_t half = _cvtss_sh(best.scale, 0);
        const float scale = _cvtsh_ss(half);
        const F32 divisor = F32::all(scale == 0.0f ? 1.0f : scale);
        const auto bytes_at = [&](int64_t i) {
            const F32 code = round(F32::load(group + i) / divisor) + F32::all(8.0f);
            return bytes_of(min(max(code, F32::zero()), F32::all(15.0f)));
        };
        const __m128i pairs = _mm_set1_epi16(16 << 8 | 1);  // the second of two in the upper bits
        for (int64_t i = 0; i < a.group; i += 32, codes += 16) {
            const __m128i first = _mm_maddubs_epi16(bytes_at(i), pairs);
            const __m128i second = _mm_maddubs_epi16(bytes_at(i + 16), pairs);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm_packus_epi16(first, second));
        }
        *scales++ = half;
    }
}

// Rounds the rows of one packed block in a buffer that stays in the cache, and packs them.
template <typename T>
void quantize_block(const QuantizeArgs& a, int64_t block) {
    thread_local Scratch codes, scale;
    const bool bytes = is_int8(a.format);
    const int64_t first = block * WIDE, rows = std::min(WIDE, a.n - first);
    const int64_t row_codes = bytes ? a.k : a.k / 2, row_scale = bytes ? 4 : a.k / a.group * 2;
    const Rounded all{codes.get<uint8_t>(WIDE * row_codes),
                      scale.get<uint8_t>(WIDE * row_scale)};
    for (int64_t row = 0; row < rows; ++row) {
        const Rounded out{all.codes + row * row_codes,
                          static_cast<uint8_t*>(all.scale) + row * row_scale};
        (bytes ? quantize_row8<T> : quantize_row4<T>)(a, source_row(first + row, a.half), out);
    }
    uint8_t* out = static_cast<uint8_t*>(a.out) + block * block_bytes(a.format, a.k, a.group);
    pack_weight({all.codes, all.scale, nullptr, out, rows, a.k, 0, a.group, a.format, 1});
}

void quantize(const QuantizeArgs& a) {
    const auto quantize_some = a.dtype == Dtype::bf16 ? quantize_block<bf16> : quantize_block<float>;
    parallel_for((a.n + WIDE - 1) / WIDE, a.threads, [&](int64_t block) { quantize_some(a, block); });
}
