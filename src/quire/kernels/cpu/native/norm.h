// RMSNorm. Included inside a namespace that has the vector types.

constexpr int64_t PIECE = 1 << 14;  // numbers: some microseconds, what it pays to share

// Calls body(row) for all rows of `size` numbers.
template <typename F>
void parallel_rows(int64_t rows, int64_t size, int threads, F&& body) {
    const int64_t some = std::max<int64_t>(1, PIECE / std::max<int64_t>(1, size));  // of a piece
    parallel_for((rows + some - 1) / some, threads, [&](int64_t piece) {
        const int64_t end = std::min(rows, (piece + 1) * some);
        for (int64_t row = piece * some; row < end; ++row) body(row);
    });
}

// 1 / rms of a row
template <typename T>
inline float rms_factor(const T* x, int64_t size, float eps) {
    F32 squares = F32::zero();
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) {
        const F32 v = F32::load(x + i);
        squares = fma(v, v, squares);
    }
    float total = squares.sum();
    for (int64_t j = i; j < size; ++j) total += as_float(x[j]) * as_float(x[j]);
    return 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
}

template <typename T>
inline void rms_norm_row(const T* x, const T* weight, T* out, int64_t size, float eps, bool adds) {
    const float scale = rms_factor(x, size, eps);
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) {
        const F32 before = adds ? F32::load(out + i) : F32::zero();
        (F32::load(x + i) * F32::all(scale) * F32::load(weight + i)).store(out + i);
        if (adds) (before + F32::load(out + i)).store(out + i);  // rounded first, as a norm alone is
    }
    for (; i < size; ++i) {
        const float before = adds ? as_float(out[i]) : 0.0f;
        from_float(as_float(x[i]) * scale * as_float(weight[i]), out + i);
        if (adds) from_float(before + as_float(out[i]), out + i);
    }
}

template <typename T>
void rms_norm_as(const RmsNormArgs& a) {
    const T *x = static_cast<const T*>(a.x), *weight = static_cast<const T*>(a.weight);
    T* out = static_cast<T*>(a.out);
    parallel_rows(a.rows, a.size, a.threads, [&](int64_t row) {
        rms_norm_row(x + row * a.size, weight, out + row * a.size, a.size, a.eps, a.adds);
    });
}

void rms_norm(const RmsNormArgs& a) {
    a.dtype == Dtype::bf16 ? rms_norm_as<bf16>(a) : rms_norm_as<float>(a);
}
