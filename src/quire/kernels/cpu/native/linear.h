// GEMMs with packed weights, fused with norm, bias, SiLU and residual. Included inside a namespace
// that has the vector types.
//
// Owns the order of work, the norm's factor and what happens to the sums; a Gemm struct for each
// weight format (see linear_float.h) reads rows and multiplies. Rows are processed in blocks of at most
// Gemm::ROWS, which stay in registers, and Gemm::outputs outputs at a time, which stay in the L2 cache.
// A sum goes over k in the format's stretches, whatever the number of rows and threads, so an output
// does not depend on what else is in the batch.

constexpr int64_t MOST_ROWS = 512;   // read at once: some MiB, which stay in the L3 cache
constexpr int64_t FEW_OUTPUTS = 64;  // of a piece: read as streams, straight from memory
constexpr int64_t LEAST_WORK = 1 << 18;  // of a piece, so that it pays to share

// Rows cut into blocks of nearly equal sizes, or into full blocks and a rest.
struct RowBlocks {
    int64_t rows, most, count;
    bool even;
    RowBlocks(int64_t rows, int64_t most, bool even)
        : rows(rows), most(most), count((rows + most - 1) / most), even(even) {}
    int64_t start(int64_t block) const {
        return even ? block * rows / count : std::min(block * most, rows);
    }
    int size(int64_t block) const { return static_cast<int>(start(block + 1) - start(block)); }
};

// 1 / rms of a row of x; 1 without a norm.
template <typename T>
inline float norm_factor(const LinearArgs& a, const T* x) {
    return a.norm_weight ? rms_factor(x, a.k, a.eps) : 1.0f;
}

// Stores a row's outputs from `first` on, with bias and epilogue. at(i): 16 sums from the i-th on.
template <typename T, typename At>
inline __attribute__((always_inline)) void finish_row(const LinearArgs& a, int64_t row,
                                                      int64_t first, int64_t outputs, At at) {
    const T* bias = static_cast<const T*>(a.bias);
    const bool gelus = a.epilogue == Epilogue::gelu;
    const bool halves = gelus || a.epilogue == Epilogue::silu;
    const int64_t width = halves ? a.n / 2 : a.n, step = halves ? 32 : 16;
    const auto sum = [&](int64_t i) {
        const F32 v = at(i);
        return bias ? v + F32::load(bias + first + i) : v;
    };
    T* out = static_cast<T*>(a.out) + row * width + first * width / a.n;
    for (int64_t i = 0; i < outputs; i += step, out += 16) {
        F32 v = sum(i);
        if (halves) v = (gelus ? gelu(v) : silu(v)) * sum(i + 16);
        if (a.epilogue == Epilogue::add) v = v + F32::load(out);
        v.store(out);
    }
}

// Stores several rows in memory order; sums_of(r): the `at` of row r. Two planes of a row are added.
template <typename T, typename Sums>
inline void finish(const LinearArgs& a, int64_t row, int64_t rows, int64_t first, int64_t outputs,
                   Sums sums_of) {
    if (a.format == Format::int8_a16) {
        for (int64_t r = 0; r < rows; r += 2) {
            const auto codes = sums_of(r), errors = sums_of(r + 1);
            finish_row<T>(a, (row + r) / 2, first, outputs,
                          [&](int64_t i) { return codes(i) + errors(i); });
        }
        return;
    }
    for (int64_t r = 0; r < rows; ++r) finish_row<T>(a, row + r, first, outputs, sums_of(r));
}

// One piece of work: outputs [first, first + outputs) of all rows that were read.
template <typename Gemm>
inline void multiply_piece(const LinearArgs& a, const typename Gemm::X* taken, int64_t row,
                           const RowBlocks& blocks, int64_t first, int64_t outputs) {
    thread_local Scratch scratch;
    float* sums = scratch.get<float>(blocks.rows * outputs);
    std::fill_n(sums, blocks.rows * outputs, 0.0f);
    const int64_t stretch = Gemm::stretch(a);
    for (int64_t k = 0; k < a.k; k += stretch)
        for (int64_t b = 0; b < blocks.count; ++b)
            Gemm::multiply(a, taken + blocks.start(b) * Gemm::row_size(a), blocks.size(b), first,
                           outputs, k, std::min(stretch, a.k - k),
                           sums + blocks.start(b) * outputs);
    const auto sums_of = [&](int64_t r) {
        return [at = sums + r * outputs](int64_t i) { return F32::load(at + i); };
    };
    a.dtype == Dtype::bf16 ? finish<bf16>(a, row, blocks.rows, first, outputs, sums_of)
                           : finish<float>(a, row, blocks.rows, first, outputs, sums_of);
}

// Outputs of a piece, a multiple of 32 from `least` to `most`: of those with which the threads, each of
// which takes as many pieces, are done first, the largest. Smaller ones have to save 3 %: they cost calls.
inline int64_t piece_outputs(int64_t n, int64_t least, int64_t most, int64_t threads) {
    int64_t best = most, least_time = INT64_MAX / 32;
    for (int64_t outputs = most; outputs >= least; outputs -= 32) {
        const int64_t pieces = (n + outputs - 1) / outputs;
        const int64_t time = (pieces + threads - 1) / threads * outputs;
        if (32 * time < 31 * least_time) best = outputs, least_time = time;
    }
    return best;
}

template <typename Gemm>
inline void multiply_rows(const LinearArgs& a, int64_t row, int64_t rows) {
    thread_local Scratch scratch;
    auto* taken = scratch.get<typename Gemm::X>(rows * Gemm::row_size(a) + Gemm::BEYOND);
    const RowBlocks blocks(rows, Gemm::ROWS, Gemm::EVEN_BLOCKS);
    const int takers = rows * a.k < LEAST_WORK / 8 ? 1 : a.threads;
    parallel_for(blocks.count, takers, [&](int64_t b) {
        Gemm::take(a, row + blocks.start(b), blocks.size(b),
                   taken + blocks.start(b) * Gemm::row_size(a));
    });
    const int64_t most = blocks.count > 1 ? Gemm::outputs(a) : FEW_OUTPUTS;
    const int64_t half = (LEAST_WORK / ((rows + 3) * a.k) + 63) / 64 * 32;  // the least outputs
    const int64_t outputs = piece_outputs(a.n, std::max(std::min(FEW_OUTPUTS, most), half),
                                          std::max(most, 2 * half), a.threads);
    parallel_for((a.n + outputs - 1) / outputs, a.threads, [&](int64_t piece) {
        const int64_t first = piece * outputs;
        Gemm::piece(a, taken, row, blocks, first, std::min(outputs, a.n - first));
    });
}

template <typename Gemm>
inline void multiply(const LinearArgs& a) {
    for (int64_t row = 0; row < a.rows; row += MOST_ROWS)
        multiply_rows<Gemm>(a, row, std::min(MOST_ROWS, a.rows - row));
}
