// What makes the compiler write out and keep what it is given. Included inside a namespace.

// Calls f with each of 0 .. N - 1, known when this is compiled, so that arrays become registers.
template <int N, typename F>
inline __attribute__((always_inline)) void each(F&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, I>()), ...);
    }(std::make_integer_sequence<int, N>());
}
#define BODY(i) [&](auto i) __attribute__((always_inline))

// Asks for a line: for the first cache, or for the second one where much is asked for at once. In
// assembly, since GCC 12 takes a function that only prefetches for one that does nothing, and drops it.
inline void prefetch(const void* p) {
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
}
inline void prefetch_second(const void* p) {
    asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p)));
}
