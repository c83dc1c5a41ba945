// See pool.h.

#include "pool.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
static void rest() { _mm_pause(); }
#else
static void rest() {}
#endif

namespace {

// How often an idle thread looks for the next call before it sleeps: some 50 us, which is more than
// what Python needs between two calls of a step, and little enough to leave the core to others.
constexpr int SPINS = 1500;
constexpr uint64_t ONE_CALL = uint64_t{1} << 32;
constexpr uint64_t CLOSED = ONE_CALL / 2;  // as a piece: more than any call has

class Pool {
   public:
    void run(int64_t count, int threads, Piece run, void* context) {
        grow(threads - 1);
        const uint64_t call = (next_.load(std::memory_order_relaxed) / ONE_CALL + 1) * ONE_CALL;
        next_.store(call + CLOSED, std::memory_order_relaxed);  // before anything it guards changes
        run_.store(run, std::memory_order_release);
        context_.store(context, std::memory_order_release);
        count_.store(count, std::memory_order_release);
        helpers_.store(threads - 1, std::memory_order_release);
        done_.store(0, std::memory_order_relaxed);
        next_.store(call, std::memory_order_release);
        calls_.store(static_cast<uint32_t>(call / ONE_CALL), std::memory_order_release);
        calls_.notify_all();
        take_pieces(call);
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins)
            spins < SPINS ? rest() : std::this_thread::yield();
    }

   private:
    // The number of the call in the upper half and of its next piece in the lower one: a thread
    // that comes late takes a piece by comparing both, and so never one of another call.
    std::atomic<uint64_t> next_{0};
    std::atomic<uint32_t> calls_{0};
    std::atomic<int64_t> count_{0}, done_{0};
    std::atomic<int> helpers_{0};
    std::atomic<Piece> run_{nullptr};
    std::atomic<void*> context_{nullptr};
    int started_ = 0, asked_ = 0;

    // Where the system has no more threads, fewer share the work; it is asked once for each number.
    void grow(int helpers) {
        if (helpers <= asked_) return;
        asked_ = helpers;
        try {
            for (; started_ < helpers; ++started_)
                std::thread([this, number = started_] { help(number); }).detach();
        } catch (const std::exception&) {
        }
    }

    void help(int number) {
        uint32_t seen = 0;
        for (;;) {
            int spins = 0;
            while (calls_.load(std::memory_order_acquire) == seen)
                ++spins < SPINS ? rest() : calls_.wait(seen, std::memory_order_acquire);
            seen = calls_.load(std::memory_order_acquire);
            if (number < helpers_.load(std::memory_order_acquire))
                take_pieces(uint64_t{seen} * ONE_CALL);
        }
    }

    void take_pieces(uint64_t call) {
        for (;;) {
            uint64_t next = next_.load(std::memory_order_acquire);
            const Piece run = run_.load(std::memory_order_acquire);
            void* const context = context_.load(std::memory_order_acquire);
            const auto piece = static_cast<int64_t>(next - call);
            if (next < call || piece >= count_.load(std::memory_order_acquire)) return;
            if (!next_.compare_exchange_strong(next, next + 1, std::memory_order_acq_rel)) continue;
            run(context, piece);
            done_.fetch_add(1, std::memory_order_acq_rel);
        }
    }
};

std::mutex one_call;

void begin_again();

// Never destroyed: its threads may outlive the end of the program's own.
Pool& pool() {
    static Pool* const shared = [] {
#if !defined(_WIN32)
        pthread_atfork(nullptr, nullptr, begin_again);
#endif
        return new Pool;
    }();
    return *shared;
}

// In a forked process, which has none of the threads: the pool has to start its own.
void begin_again() {
    new (&pool()) Pool;
    new (&one_call) std::mutex;
}

}  // namespace

void run_pieces(int64_t count, int threads, Piece run, void* context) {
    std::unique_lock<std::mutex> lock(one_call, std::defer_lock);
    if (threads > 1 && count > 1 && lock.try_lock()) return pool().run(count, threads, run, context);
    for (int64_t piece = 0; piece < count; ++piece) run(context, piece);
}
