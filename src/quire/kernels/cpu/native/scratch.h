// Memory that a thread needs during a call, kept for the next one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

class Scratch {
   public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    ~Scratch() { free(); }

    // Space for `count` items, on a cache line's border; what it held before is lost.
    template <typename T>
    T* get(int64_t count) {
        const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
        if (bytes > size_) {
            free();
            data_ = ::operator new(static_cast<size_t>(bytes), LINE);
            size_ = bytes;
        }
        return static_cast<T*>(data_);
    }

   private:
    static constexpr std::align_val_t LINE{64};
    void* data_ = nullptr;
    int64_t size_ = 0;
    void free() { ::operator delete(data_, LINE); }
};
