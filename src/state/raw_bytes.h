// A byte vector whose new elements are left unwritten, for buffers that are filled at once: clearing 64 MB first would
// cost as much as copying them. Large buffers are aligned to and advised for huge pages, since their first touch is
// otherwise dominated by page faults.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace draftprobe::state {

template <class T>
class UnwrittenAllocator {
public:
    using value_type = T;

    UnwrittenAllocator() = default;
    template <class U>
    UnwrittenAllocator(const UnwrittenAllocator<U>&) {}  // NOLINT: allocators convert

    T* allocate(std::size_t count) {
        const std::size_t size = count * sizeof(T);
        if (size < kHugePage) return static_cast<T*>(::operator new(size));
        void* memory = ::operator new (size, std::align_val_t{kHugePage});
        // Advice: where the system has no huge pages, nothing but time is lost.
        static_cast<void>(::madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE));
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t count) {
        if (count * sizeof(T) < kHugePage) {
            ::operator delete(memory);
        } else {
            ::operator delete (memory, std::align_val_t{kHugePage});
        }
    }
    template <class U>
    void construct(U* at) {
        ::new (static_cast<void*>(at)) U;  // default-initialised: bytes stay as they are
    }
    template <class U, class... Args>
    void construct(U* at, Args&&... args) {
        ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
    }
    bool operator==(const UnwrittenAllocator&) const = default;

private:
    static constexpr std::size_t kHugePage = std::size_t{2} << 20;
};

using RawBytes = std::vector<std::byte, UnwrittenAllocator<std::byte>>;

}  // namespace draftprobe::state
