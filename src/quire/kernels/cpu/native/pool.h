// Thread pool: threads that share the work of one kernel call.
//
// Work is cut into pieces that the next free thread takes, so that a thread the system does not run
// just now delays no other: the caller alone can finish. (OpenMP's threads each have their share,
// and where another process wants a core, every call waits for a time slice: 5 ms instead of 5 us.)
// What a piece computes must not depend on who takes it, so results never depend on timing.

#pragma once

#include <cstdint>
#include <type_traits>

using Piece = void (*)(void* context, int64_t piece);

// Runs pieces 0 .. count - 1 by the thread pool: on up to `threads` threads, the caller's among them;
// returns when all are done. One call at a time; a call from another thread meanwhile runs its
// pieces alone.
void run_pieces(int64_t count, int threads, Piece run, void* context);

template <typename F>
void parallel_for(int64_t count, int threads, F&& body) {
    using Body = std::remove_reference_t<F>;
    run_pieces(
        count, threads, [](void* context, int64_t piece) { (*static_cast<Body*>(context))(piece); },
        &body);
}
