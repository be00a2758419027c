#include "state/page_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace draftprobe::state {

namespace {

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t mapped_size(std::size_t bytes) {
    if (bytes < kHugePage) return rounded_up(bytes, kSmallPage);
    return rounded_up(bytes, bytes % kHugePage >= kHugePage / 2 ? kHugePage : kSmallPage);
}

// `size` bytes whose address is a multiple of kHugePage: mapped with a huge page to spare, of which the ends go back.
std::byte* map_aligned(std::size_t size) {
    const std::size_t spare = size < kHugePage ? 0 : kHugePage;
    void* mapped = ::mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    auto* first = static_cast<std::byte*>(mapped);
    if (spare == 0) return first;
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
    if (before > 0) ::munmap(first, before);
    if (before < spare) ::munmap(first + before + size, spare - before);
    return first + before;
}

}  // namespace

PageMemory::PageMemory(std::size_t bytes) : size_(mapped_size(bytes)) {
    if (size_ == 0) return;
    data_ = map_aligned(size_);
    const std::size_t huge = size_ / kHugePage * kHugePage;
    if (huge == 0) return;
    // Advice: where the system has no huge pages, nothing but time is lost.
    static_cast<void>(::madvise(data_, huge, MADV_HUGEPAGE));
    for (std::size_t end = kHugePage; end <= huge; end += kHugePage) {
        *static_cast<volatile std::byte*>(data_ + end - 1) = std::byte{0};
    }
#ifdef MADV_POPULATE_WRITE
    if (huge < size_) static_cast<void>(::madvise(data_ + huge, size_ - huge, MADV_POPULATE_WRITE));
#endif
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

PageMemory::~PageMemory() {
    if (data_ != nullptr) ::munmap(data_, size_);
}

void PageMemory::discard(std::size_t offset, std::size_t bytes) {
    static_cast<void>(::madvise(data_ + offset, bytes, MADV_DONTNEED));
}

}  // namespace draftprobe::state
