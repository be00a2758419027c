// Anonymous memory for large state, mapped on its own and aligned to huge pages, which it is advised for: with 4 KiB
// pages the first touch of a snapshot takes several times as long as copying it.
//
// Whole huge pages are touched when they are mapped, at their last byte: the kernel clears a huge page towards the byte
// that faulted, and clearing it upwards takes about a third of the time of clearing it downwards.
#pragma once

#include <cstddef>

namespace draftprobe::state {

inline constexpr std::size_t kSmallPage = std::size_t{4} << 10;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

class PageMemory {
public:
    PageMemory() = default;
    // At least `bytes` zeros. Throws bad_alloc. From half a huge page on, what is left over whole huge pages is rounded
    // up to one; less is rounded up to small pages.
    explicit PageMemory(std::size_t bytes);
    PageMemory(PageMemory&& other) noexcept;
    PageMemory& operator=(PageMemory&& other) noexcept;
    PageMemory(const PageMemory&) = delete;
    PageMemory& operator=(const PageMemory&) = delete;
    ~PageMemory();

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }  // what is mapped: whole pages

    // Gives memory back to the system; it reads as zeros afterwards. Both are multiples of kSmallPage; a part of a huge
    // page stays occupied until all of it was given back.
    void discard(std::size_t offset, std::size_t bytes);

private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace draftprobe::state
