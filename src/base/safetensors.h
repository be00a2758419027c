// The safetensors container: named tensors in one file, read through a map, written with fixed bytes.
//
// Layout: u64le header size, JSON header {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__":
// {..}}, then the buffer; offsets count from the start of the buffer. Element bytes are little-endian, row-major.
// Source: the format section of the safetensors README.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/status.h"

namespace draftprobe {

enum class DType { bf16, f16, f32, f64, u8, i8, u16, i16, u32, i32, u64, i64, boolean, f8_e4m3, f8_e5m2 };

std::size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);                      // as in the header: "BF16", "U32", ...
std::string shape_text(std::span<const std::uint64_t> shape);  // "[5120, 25600]"

// One tensor of a file. `bytes` points into the file's map with any alignment: read elements with load_f32 or memcpy.
// Invariant of views that SafetensorsFile gives: bytes.size() == elements() * dtype_bytes(dtype).
struct TensorView {
    DType dtype = DType::f32;
    std::vector<std::uint64_t> shape;  // empty: a scalar; a zero dimension: no elements
    std::span<const std::byte> bytes;

    std::uint64_t elements() const;
};

// Widens bf16, f16 or f32 (exactly) into dst. Errors: unsupported for another dtype, invalid_argument when dst does not
// have view.elements() places.
Status load_f32(const TensorView& view, std::span<float> dst);
// Copies U32 words. Errors as load_f32.
Status load_u32(const TensorView& view, std::span<std::uint32_t> dst);

// Index of the first NaN or infinity; nullopt when there is none, or when the dtype is none of bf16, f16, f32.
std::optional<std::uint64_t> first_nonfinite(const TensorView& view);

// A validated file: header at most 100 MB and starting with '{', no duplicate name, known dtypes, sizes that agree with
// shapes, and tensors that cover the buffer exactly, without hole or overlap. Immutable; any number of threads.
class SafetensorsFile {
public:
    // Errors: not_found, io; corrupt (which rule, tensor, found, expected); unsupported for a dtype outside DType.
    static Result<SafetensorsFile> open(const std::filesystem::path& path);
    // The same over bytes that outlive the result; `subject` names them in messages.
    static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string_view subject);

    // Null when there is no such tensor. Pointers live as long as the file object, also across a move.
    const TensorView* find(std::string_view name) const;
    const std::vector<std::string>& names() const { return names_; }  // sorted bytewise
    const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
    const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
    const std::filesystem::path& path() const { return path_; }  // the subject for parse()

private:
    std::filesystem::path path_;
    MappedFile map_;
    std::map<std::string, TensorView, std::less<>> tensors_;
    std::vector<std::string> names_;
    std::map<std::string, std::string, std::less<>> metadata_;
};

// Collects tensors and writes them once. Bytes of the file depend only on the calls: tensors in the order added, packed
// without holes, header padded with spaces to 8 bytes.
class SafetensorsWriter {
public:
    // `bytes` is borrowed and must outlive write(). Errors: invalid_argument for a repeated, empty or "__metadata__"
    // name, or a size that does not match dtype and shape.
    Status add(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
               std::span<const std::byte> bytes);
    // As add(), keeping the bytes.
    Status add_owned(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                     std::vector<std::byte> bytes);
    // String metadata; keys sorted in the file, a repeated key replaces.
    void set_metadata(std::string_view key, std::string_view value);

    Status write(const std::filesystem::path& path) const;  // creates or replaces, then syncs. Errors: io
    std::string to_bytes() const;                           // the same bytes in memory

private:
    struct Entry {
        std::string name;
        DType dtype;
        std::vector<std::uint64_t> shape;
        std::span<const std::byte> bytes;
        std::vector<std::byte> owned;
    };

    std::string header() const;

    std::vector<Entry> entries_;
    std::map<std::string, std::size_t, std::less<>> index_;
    std::map<std::string, std::string> metadata_;
};

}  // namespace draftprobe
