#include "base/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <optional>

#include "base/float_bits.h"
#include "base/json.h"
#include "base/utf8.h"

namespace draftprobe {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian and are read in place");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::uint64_t kMaxOffset = std::uint64_t{1} << 53;  // beyond, JSON readers disagree about integers
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeInfo {
    DType dtype;
    std::string_view name;
    std::size_t bytes;
};

constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {DType::bf16, "BF16", 2},
    {DType::f16, "F16", 2},
    {DType::f32, "F32", 4},
    {DType::f64, "F64", 8},
    {DType::u8, "U8", 1},
    {DType::i8, "I8", 1},
    {DType::u16, "U16", 2},
    {DType::i16, "I16", 2},
    {DType::u32, "U32", 4},
    {DType::i32, "I32", 4},
    {DType::u64, "U64", 8},
    {DType::i64, "I64", 8},
    {DType::boolean, "BOOL", 1},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1},
}};

const DTypeInfo& info_of(DType dtype) {
    const DTypeInfo& info = kDTypes[static_cast<std::size_t>(dtype)];
    assert(info.dtype == dtype);
    return info;
}

// Product of `shape` times `scale`, or nullopt beyond 2^64-1.
std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> shape, std::uint64_t scale) {
    // A zero dimension makes the product zero whatever the others are, but those must not overflow first.
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
    std::uint64_t product = scale;
    for (const std::uint64_t dimension : shape) {
        if (product > std::numeric_limits<std::uint64_t>::max() / dimension) return std::nullopt;
        product *= dimension;
    }
    return product;
}

struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    const std::string* name = nullptr;
};

// One entry of the header, without the check against its neighbours.
Result<TensorView> read_entry(const Json& entry, std::string_view subject, std::span<const std::byte> buffer,
                              Extent& extent) {
    TensorView view;
    DP_ASSIGN_OR_RETURN(const std::string dtype, json_get_string(entry, "dtype", subject));
    const auto known =
        std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& i) { return i.name == dtype; });
    if (known == kDTypes.end()) {
        std::string names;
        for (const DTypeInfo& i : kDTypes) names += (names.empty() ? "" : ", ") + std::string(i.name);
        return unsupported(fmt::format("{}: dtype {}, expected one of {}", subject, quoted_excerpt(dtype), names));
    }
    view.dtype = known->dtype;
    constexpr auto kMaxInt = static_cast<std::int64_t>(kMaxOffset);
    DP_ASSIGN_OR_RETURN(const auto shape, json_get_int_array(entry, "shape", subject, 0, kMaxInt, kMaxDimensions));
    view.shape.assign(shape.begin(), shape.end());
    DP_ASSIGN_OR_RETURN(const auto offsets, json_get_int_array(entry, "data_offsets", subject, 0, kMaxInt, 2));
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        return corrupt(fmt::format("{}: \"data_offsets\" is {}, expected [begin, end] with begin <= end", subject,
                                   entry["data_offsets"].dump()));
    }
    if (entry.size() != 3) {
        return corrupt(
            fmt::format("{}: {} members, expected dtype, shape and data_offsets alone", subject, entry.size()));
    }
    extent.begin = static_cast<std::uint64_t>(offsets[0]);
    extent.end = static_cast<std::uint64_t>(offsets[1]);
    const std::optional<std::uint64_t> expected = checked_product(view.shape, known->bytes);
    if (!expected || *expected != extent.end - extent.begin) {
        return corrupt(fmt::format("{}: {} bytes by its offsets, expected {} for {} {}", subject,
                                   extent.end - extent.begin, expected ? std::to_string(*expected) : "more than 2^64",
                                   dtype, shape_text(view.shape)));
    }
    if (extent.end > buffer.size()) {
        return corrupt(
            fmt::format("{}: {} {} ends at byte {} of the buffer, which has {}; the file is cut short, copy "
                        "or download it again",
                        subject, dtype, shape_text(view.shape), extent.end, buffer.size()));
    }
    view.bytes = buffer.subspan(extent.begin, extent.end - extent.begin);
    return view;
}

Status check_cover(std::vector<Extent>& extents, std::uint64_t buffer_bytes, std::string_view subject) {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t covered = 0;
    for (const Extent& extent : extents) {
        if (extent.begin != covered) {
            return corrupt(
                fmt::format("{}: tensor {} begins at byte {} of the buffer, expected {} ({})", subject,
                            quoted_excerpt(*extent.name), extent.begin, covered,
                            extent.begin < covered ? "it overlaps another tensor" : "a hole lies before it"));
        }
        covered = extent.end;
    }
    if (covered != buffer_bytes) {
        return corrupt(
            fmt::format("{}: tensors cover {} bytes of the buffer, which has {}; extra bytes follow the last "
                        "tensor",
                        subject, covered, buffer_bytes));
    }
    return {};
}

Result<std::map<std::string, std::string, std::less<>>> read_metadata(const Json& value, std::string_view subject) {
    std::map<std::string, std::string, std::less<>> metadata;
    if (!value.is_object()) {
        return corrupt(fmt::format("{}: \"__metadata__\" is {}, expected an object", subject, value.type_name()));
    }
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) {
            return corrupt(fmt::format("{}: \"__metadata__\" member {} is {}, expected a string", subject,
                                       quoted_excerpt(key), text.type_name()));
        }
        metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
}

Status wrong_places(const TensorView& view, std::size_t places) {
    return invalid_argument(
        fmt::format("tensor {} has {} elements, destination has {}", shape_text(view.shape), view.elements(), places));
}

}  // namespace

std::size_t dtype_bytes(DType dtype) { return info_of(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return info_of(dtype).name; }

std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

std::uint64_t TensorView::elements() const {
    std::uint64_t product = 1;
    for (const std::uint64_t dimension : shape) product *= dimension;
    return product;
}

Status load_f32(const TensorView& view, std::span<float> dst) {
    if (view.bytes.size() != dst.size() * dtype_bytes(view.dtype)) return wrong_places(view, dst.size());
    if (dst.empty()) return {};
    if (view.dtype == DType::f32) {
        std::memcpy(dst.data(), view.bytes.data(), view.bytes.size());
        return {};
    }
    if (view.dtype != DType::bf16 && view.dtype != DType::f16) {
        return unsupported(fmt::format("tensor of dtype {}, expected BF16, F16 or F32", dtype_name(view.dtype)));
    }
    const bool bf16 = view.dtype == DType::bf16;
    for (std::size_t i = 0; i < dst.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, view.bytes.data() + 2 * i, sizeof bits);
        dst[i] = bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
    return {};
}

Status load_u32(const TensorView& view, std::span<std::uint32_t> dst) {
    if (view.dtype != DType::u32) {
        return unsupported(fmt::format("tensor of dtype {}, expected U32", dtype_name(view.dtype)));
    }
    if (view.bytes.size() != dst.size_bytes()) return wrong_places(view, dst.size());
    if (!dst.empty()) std::memcpy(dst.data(), view.bytes.data(), view.bytes.size());
    return {};
}

namespace {

// All exponent bits set means NaN or infinity, in each of the three formats.
template <typename Word>
std::optional<std::uint64_t> first_full_exponent(std::span<const std::byte> bytes, Word exponent) {
    constexpr std::size_t kBlock = 4096;  // the inner loop has no early exit, so that it runs in vector registers
    const std::size_t count = bytes.size() / sizeof(Word);
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
        const std::size_t end = std::min(count, begin + kBlock);
        const auto full = [&](std::size_t i) {
            Word word = 0;
            std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof word);
            return (word & exponent) == exponent;
        };
        bool found = false;
        for (std::size_t i = begin; i < end; ++i) found |= full(i);
        if (!found) continue;
        for (std::size_t i = begin; i < end; ++i) {
            if (full(i)) return i;
        }
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> first_nonfinite(const TensorView& view) {
    switch (view.dtype) {
        case DType::bf16: return first_full_exponent<std::uint16_t>(view.bytes, 0x7f80);
        case DType::f16: return first_full_exponent<std::uint16_t>(view.bytes, 0x7c00);
        case DType::f32: return first_full_exponent<std::uint32_t>(view.bytes, 0x7f800000);
        default: return std::nullopt;
    }
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
    DP_ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
    DP_ASSIGN_OR_RETURN(SafetensorsFile file, parse(map.bytes(), path.string()));
    file.map_ = std::move(map);
    return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string_view subject) {
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof header_bytes) {
        return corrupt(fmt::format("{}: {} bytes, expected a safetensors file of at least 10; the file is cut short",
                                   subject, bytes.size()));
    }
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    if (header_bytes > kMaxHeaderBytes) {
        return corrupt(
            fmt::format("{}: byte 0: header of {} bytes, expected at most {}; this is not a safetensors file", subject,
                        header_bytes, kMaxHeaderBytes));
    }
    if (header_bytes > bytes.size() - sizeof header_bytes) {
        return corrupt(
            fmt::format("{}: byte 0: header of {} bytes, but the file has only {} after its first 8; the file "
                        "is cut short, copy or download it again",
                        subject, header_bytes, bytes.size() - sizeof header_bytes));
    }
    const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes, header_bytes);
    if (header.empty() || header.front() != '{') {
        return corrupt(
            fmt::format("{}: byte 8: the header does not begin with '{{'; this is not a safetensors file", subject));
    }
    DP_ASSIGN_OR_RETURN(const Json parsed, parse_json(header, fmt::format("{}: header at byte 8", subject)));

    SafetensorsFile file;
    file.path_ = std::filesystem::path(std::string(subject));
    const std::span<const std::byte> buffer = bytes.subspan(sizeof header_bytes + header_bytes);
    std::vector<Extent> extents;
    extents.reserve(parsed.size());
    for (const auto& [name, entry] : parsed.items()) {
        if (name == kMetadataKey) {
            DP_ASSIGN_OR_RETURN(file.metadata_, read_metadata(entry, subject));
            continue;
        }
        const std::string entry_subject = fmt::format("{}: tensor {}", subject, quoted_excerpt(name));
        if (!entry.is_object()) {
            return corrupt(fmt::format("{} is {}, expected an object", entry_subject, entry.type_name()));
        }
        Extent extent;
        DP_ASSIGN_OR_RETURN(TensorView view, read_entry(entry, entry_subject, buffer, extent));
        const auto slot = file.tensors_.emplace(name, std::move(view)).first;
        extent.name = &slot->first;
        extents.push_back(extent);
        file.names_.push_back(name);
    }
    DP_RETURN_IF_ERROR(check_cover(extents, buffer.size(), subject));
    return file;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

Status SafetensorsWriter::add(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                              std::span<const std::byte> bytes) {
    if (name.empty() || name == kMetadataKey || utf8_first_error(name)) {
        return invalid_argument(
            fmt::format("tensor name \"{}\", expected a non-empty UTF-8 name other than {}", name, kMetadataKey));
    }
    const std::optional<std::uint64_t> expected = checked_product(shape, dtype_bytes(dtype));
    if (shape.size() > kMaxDimensions || !expected || *expected != bytes.size()) {
        return invalid_argument(fmt::format("tensor \"{}\": {} bytes, expected {} for {} {}", name, bytes.size(),
                                            expected ? std::to_string(*expected) : "more than 2^64", dtype_name(dtype),
                                            shape_text(shape)));
    }
    if (!index_.emplace(name, entries_.size()).second) {
        return invalid_argument(fmt::format("tensor \"{}\" was added before, expected each name once", name));
    }
    entries_.push_back({std::string(name), dtype, {shape.begin(), shape.end()}, bytes, {}});
    return {};
}

Status SafetensorsWriter::add_owned(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                                    std::vector<std::byte> bytes) {
    DP_RETURN_IF_ERROR(add(name, dtype, shape, bytes));
    entries_.back().owned = std::move(bytes);  // a moved vector keeps its buffer, so the span stays valid
    return {};
}

void SafetensorsWriter::set_metadata(std::string_view key, std::string_view value) {
    metadata_[std::string(key)] = value;
}

// The 8-byte size, then the JSON header padded with spaces to a multiple of 8.
std::string SafetensorsWriter::header() const {
    JsonWriter json;
    json.begin_object();
    if (!metadata_.empty()) {
        json.key(kMetadataKey).begin_object();
        for (const auto& [key, value] : metadata_) json.member(key, value);
        json.end_object();
    }
    std::uint64_t offset = 0;
    for (const Entry& entry : entries_) {
        json.key(entry.name).begin_object().member("dtype", dtype_name(entry.dtype)).key("shape").begin_array();
        for (const std::uint64_t dimension : entry.shape) json.value(dimension);
        json.end_array().key("data_offsets").begin_array().value(offset);
        offset += entry.bytes.size();
        json.value(offset).end_array().end_object();
    }
    json.end_object();
    std::string text = json.take();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t size = text.size();
    std::string out(sizeof size, '\0');
    std::memcpy(out.data(), &size, sizeof size);
    return out + text;
}

std::string SafetensorsWriter::to_bytes() const {
    std::string out = header();
    for (const Entry& entry : entries_) {
        out.append(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
    }
    return out;
}

Status SafetensorsWriter::write(const std::filesystem::path& path) const {
    DP_ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(path));
    DP_RETURN_IF_ERROR(file.write(header()));
    for (const Entry& entry : entries_) DP_RETURN_IF_ERROR(file.write(entry.bytes));
    return file.finish();
}

}  // namespace draftprobe
