// Softmax attention of query rows over keys grouped in 32-position pages by absolute index.
//
// Order per (row, query head): pages ascending, online softmax as Kernels::attention_page states, then out[d] /
// running_sum. A row's result depends on its own visible keys alone, so verify rows, prefill rows and single rows agree
// bit for bit.
#pragma once

#include <span>

#include "numerics/compute.h"

namespace draftprobe::numerics {

// Where keys and values come from. `load_page` writes float32 for page p (positions 32p .. 32p+31) of one KV head:
// keys_t [head_dim][32], values [32][head_dim]. Entries of positions that no row sees may hold anything.
// Called from several threads at once.
class KeySource {
public:
    virtual ~KeySource() = default;
    virtual void load_page(Position page, int kv_head, float* keys_t, float* values) const = 0;
};

struct AttendArgs {
    ConstRows queries;  // [rows, q_heads * head_dim], normalised and rotated
    Rows out;           // [rows, q_heads * head_dim]
    int q_heads = 0;
    int kv_heads = 0;  // q_heads % kv_heads == 0; query head h uses KV head h / (q_heads / kv_heads)
    int head_dim = 0;
    float scale = 0;
    // Per row: the inclusive range of visible positions; first <= last.
    std::span<const Position> first_visible;
    std::span<const Position> last_visible;
};

void attend(const Compute& compute, const KeySource& source, const AttendArgs& args);

}  // namespace draftprobe::numerics
