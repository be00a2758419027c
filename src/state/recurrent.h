// Recurrent state of the gated delta layers: two cells by parity, and the operands of the rows under verification.
//
// The current cell is the state after the committed length and is never written while rows are computed. A forward
// scans from the current cell into the idle one; commit either adopts the idle cell (every row kept: flip) or folds the
// first kept rows from their saved operands into it (then flip). So a rejection needs no undo and no per-row state
// copies. The idle cell is scratch: it belongs to no digest and no comparison.
#pragma once

#include <cstddef>
#include <vector>

#include "state/stored_rows.h"

namespace draftprobe::state {

struct RecurrentCell {
    std::vector<std::vector<float>> matrix;  // per delta layer [value_heads][key_dim][value_dim]
    std::vector<StoredRows> conv;  // per delta layer [conv_rows][conv_channels]: last pre-activation rows, oldest first
    // Tokens that went into this cell. Of a sound lane it is the committed length; it is counted apart from that label
    // so that the ledger can say when the two differ.
    Position consumed = 0;

    RecurrentCell() = default;
    explicit RecurrentCell(const StateShape& shape);
    void clear();   // zeros: the state before the first token
    void poison();  // NaN patterns
};

// Per-row operands of one forward call over one lane, kept so that commit can fold the first `retained` rows.
struct DeltaOperands {
    std::size_t rows = 0;
    // Per delta layer, row-major over rows.
    std::vector<std::vector<float>> key;    // [rows][key_heads * key_dim], normalised
    std::vector<std::vector<float>> value;  // [rows][value_heads * value_dim]
    std::vector<std::vector<float>> decay;  // [rows][value_heads], exp(g)
    std::vector<std::vector<float>> beta;   // [rows][value_heads]
    std::vector<std::vector<float>> conv;   // [rows][conv_channels], already rounded to the stored format
};

class RecurrentState {
public:
    RecurrentState() = default;
    explicit RecurrentState(const StateShape& shape) : cells_{RecurrentCell(shape), RecurrentCell(shape)} {}

    RecurrentCell& current() { return cells_[parity_]; }
    const RecurrentCell& current() const { return cells_[parity_]; }
    RecurrentCell& idle() { return cells_[1 - parity_]; }
    const RecurrentCell& idle() const { return cells_[1 - parity_]; }
    void flip() { parity_ = 1 - parity_; }

    DeltaOperands operands;

private:
    RecurrentCell cells_[2];
    int parity_ = 0;
};

}  // namespace draftprobe::state
