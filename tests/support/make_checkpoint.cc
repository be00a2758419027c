// Writes checkpoints of published shapes with random values, for runs at real size. Not part of the program.
//
//     make_checkpoint target DIR       Qwen3.5-0.8B's shape, MLX affine 4 bits
//     make_checkpoint draft DIR        a DFlash2 draft in BF16 that fits it
//     make_checkpoint ids FILE COUNT   a JSON array of token ids
//
// Every value is a function of the tensor's name and the element's index alone. Scales keep a token's rows finite and
// of the size that trained models have: linear maps have standard deviation gain / sqrt(inputs).
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/float_bits.h"
#include "base/hash.h"
#include "support/published.h"

namespace draftprobe::support {

namespace {

constexpr std::uint64_t kSeed = 20;
constexpr std::uint64_t kTokenIds = 248077;  // of the tokenizer; the rows above are padding
constexpr std::uint64_t kGroup = 64;

std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

// Mean 0, standard deviation 1, within 3.5 of 0: the sum of four uniform bytes.
double bell(std::uint64_t word) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(word >> (8 * i) & 0xff);
    return (sum - 510) / 147.8;
}

double uniform(std::uint64_t word) { return static_cast<double>(word >> 11) / 9007199254740992.0; }

// How one tensor is filled. `scale`: standard deviation, or half the range of a uniform value.
struct Recipe {
    enum class Kind { words, scales, biases, bell, uniform } kind = Kind::bell;
    double centre = 0;
    double scale = 0;
};

double gain_of(std::string_view module) {
    // What a sublayer adds to the residual stream.
    if (module.ends_with("o_proj") || module.ends_with("out_proj") || module.ends_with("down_proj")) return 0.7;
    return 1.0;
}

double deviation_of(std::string_view module, std::uint64_t inputs) {
    // The tied table is the head too: logits then spread by 0.1 * sqrt(hidden), about 3.
    if (module.ends_with("embed_tokens")) return 0.1;
    if (module.ends_with("kernel_projection")) return 0.1 / std::sqrt(static_cast<double>(inputs));
    return gain_of(module) / std::sqrt(static_cast<double>(inputs));
}

// Codes 0..15 are uniform, so one step is the deviation over 4.61.
constexpr double kCodeDeviation = 4.61;

Recipe recipe_of(const StoredTensor& tensor) {
    using Kind = Recipe::Kind;
    const std::string_view name = tensor.name;
    const auto module = [&](std::string_view suffix) { return name.substr(0, name.size() - suffix.size()); };
    if (tensor.dtype == DType::u32) return {Kind::words};
    for (const std::string_view suffix : {".scales", ".biases"}) {
        if (!name.ends_with(suffix)) continue;
        const double step = deviation_of(module(suffix), tensor.shape.back() * kGroup) / kCodeDeviation;
        return {suffix == ".scales" ? Kind::scales : Kind::biases, 0, step};
    }
    if (name.ends_with("A_log")) return {Kind::uniform, 1.0, 1.0};     // decay rates of 1 to 7
    if (name.ends_with("dt_bias")) return {Kind::uniform, -3.0, 1.5};  // steps of about 0.01 to 0.2
    if (name.ends_with("conv1d.weight")) return {Kind::uniform, 0, 0.6};
    if (name.ends_with("norm.weight") || name.ends_with("layernorm.weight")) return {Kind::uniform, 1.0, 0.1};
    if (name.ends_with("base_kernel")) return {Kind::uniform, 0, 0.1};  // the own tap is added below
    if (name.ends_with("_codebook")) return {Kind::bell, 0, 0.25};
    return {Kind::bell, 0, deviation_of(module(".weight"), tensor.shape.back())};
}

class Filler {
public:
    void fill(const StoredTensor& tensor, std::uint64_t offset, std::span<std::byte> block) {
        if (offset == 0) {
            recipe_ = recipe_of(tensor);
            // Scales and biases of one module share their random signs.
            std::string stem = tensor.name;
            if (stem.ends_with(".biases")) stem.replace(stem.size() - 7, 7, ".scales");
            key_ = mixed(kSeed ^ xxh3_64(std::as_bytes(std::span(stem))));
        }
        const std::size_t size = dtype_bytes(tensor.dtype);
        const std::uint64_t first = offset / size;
        for (std::size_t i = 0; i * size < block.size(); ++i) put(tensor, first + i, block.data() + i * size);
    }

private:
    void put(const StoredTensor& tensor, std::uint64_t index, std::byte* out) const {
        const std::uint64_t word = mixed(key_ + index);
        if (recipe_.kind == Recipe::Kind::words) {
            const auto codes = static_cast<std::uint32_t>(word >> 16);
            std::memcpy(out, &codes, sizeof codes);
            return;
        }
        const auto value = static_cast<float>(value_at(tensor, index, word));
        if (tensor.dtype == DType::f32) {
            std::memcpy(out, &value, sizeof value);
        } else {
            const std::uint16_t bits = f32_to_bf16(value);
            std::memcpy(out, &bits, sizeof bits);
        }
    }

    double value_at(const StoredTensor& tensor, std::uint64_t index, std::uint64_t word) const {
        using Kind = Recipe::Kind;
        if (recipe_.kind == Kind::scales || recipe_.kind == Kind::biases) {
            // The bias is -8 steps exactly, whatever the rounding of the step; signs make the mean vanish over groups.
            const float step = bf16_to_f32(f32_to_bf16(static_cast<float>(recipe_.scale)));
            const double scale = (word & 1) != 0 ? step : -step;
            return recipe_.kind == Kind::scales ? scale : -8.0 * scale;
        }
        double value = recipe_.centre;
        value += recipe_.scale * (recipe_.kind == Kind::bell ? bell(word) : 2 * uniform(word) - 1);
        if (tensor.name.ends_with("base_kernel")) {
            const std::uint64_t tap = index / tensor.shape[2] % tensor.shape[1];
            value += tap == 0 ? 1.0 : 0.0;
        }
        return value;
    }

    Recipe recipe_;
    std::uint64_t key_ = 0;
};

Status write_ids(const std::string& path, std::uint64_t count) {
    std::string text = "[";
    for (std::uint64_t i = 0; i < count; ++i) {
        text += fmt::format("{}{}", i == 0 ? "" : ",", mixed(kSeed + i) % kTokenIds);
    }
    return write_file(path, text + "]\n");
}

Status run(std::span<char*> words) {
    constexpr std::string_view kUsage = "usage: make_checkpoint target DIR | draft DIR | ids FILE COUNT";
    const std::string_view what = words.empty() ? "" : words[0];
    Filler filler;
    const FillBlock fill = [&filler](const StoredTensor& tensor, std::uint64_t offset, std::span<std::byte> block) {
        filler.fill(tensor, offset, block);
    };
    if (what == "target" && words.size() == 2) return write_filled(words[1], mlx_target(kQwen35Small), fill);
    if (what == "draft" && words.size() == 2) return write_filled(words[1], draft_files(draft_for_small()), fill);
    if (what == "ids" && words.size() == 3) {
        std::uint64_t count = 0;
        const std::string_view text = words[2];
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
        if (error == std::errc() && end == text.data() + text.size() && count <= 1'000'000) {
            return write_ids(words[1], count);
        }
    }
    return invalid_argument(std::string(kUsage));
}

}  // namespace

}  // namespace draftprobe::support

int main(int argc, char** argv) {
    const draftprobe::Status status =
        draftprobe::support::run(std::span(argv + 1, static_cast<std::size_t>(argc > 0 ? argc - 1 : 0)));
    if (status.ok()) return 0;
    std::fprintf(stderr, "make_checkpoint: %s\n", status.message().c_str());
    return 2;
}
