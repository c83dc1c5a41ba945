// The softmax of scores that stand transposed, [keys, rows]: it goes down the lanes. Included inside a
// namespace that has unroll.h and exp.h.

// How weights are kept: as they are, in place of their scores.
struct InPlace {
    static constexpr int AT_ONCE = 1;  // keys
    float* scores;
    int64_t width;
    static F32 power(F32 x) { return power_of_two(x); }
    void keep(int64_t t, int64_t lane, const F32 (&weights)[1]) const {
        weights[0].store(scores + t * width + lane);
    }
};

// Scores [count, width], which times `scale` are exponents of two, into weights that `kept` keeps;
// positions [width]: of each lane's query. Key `first` + t is seen from its own position on, and for
// `window` tokens. What was summed up before is to be multiplied `by`.
template <typename Kept>
inline void weigh_rows(float* scores, int64_t count, int64_t width, int64_t first, bool masked,
                       const float* positions, float window, float scale, float* most,
                       float* total, float* by, const Kept& kept) {
    const F32 hidden = F32::all(-INFINITY), factor = F32::all(scale);
    for (int64_t lane = 0; lane < width; lane += 16) {
        const F32 position = F32::load(positions + lane), before = F32::load(most + lane);
        const F32 oldest = position - F32::all(window - 1.0f);
        F32 highest = before;
        for (int64_t t = 0; t < count; ++t) {
            float* at = scores + t * width + lane;
            F32 s = F32::load(at);
            if (masked) {
                const F32 key = F32::all(static_cast<float>(first + t));
                s = where_less(key, oldest, hidden, where_less(position, key, hidden, s));
                s.store(at);
            }
            highest = max(highest, s);
        }
        const F32 less = power_of_two((before - highest) * factor);
        const F32 origin = F32::zero() - highest * factor;
        F32 sum = F32::load(total + lane) * less;
        for (int64_t t = 0; t < count; t += Kept::AT_ONCE) {
            F32 weights[Kept::AT_ONCE];
            each<Kept::AT_ONCE>(BODY(i) {
                const F32 s = F32::load(scores + (t + i) * width + lane);
                weights[i] = Kept::power(fma(s, factor, origin));
                sum = sum + weights[i];
            });
            kept.keep(t, lane, weights);
        }
        highest.store(most + lane);
        sum.store(total + lane);
        less.store(by + lane);
    }
}
