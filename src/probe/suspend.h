// A restored arm in two processes (tier `process`): the first materialises, leaves its state in a directory and waits;
// the second reads it and runs the rest. The directory holds
//   arm/               a capture without steps: settings, treatment, ledger and forward schedule so far
//   boundary.snapshot  the state at the boundary
//   base.snapshot      only for the draft form `recompute` with an earlier base
//   lockstep.txt       only in lockstep: a line per cycle of the control, its next anchor and the tokens it committed
//   idle-faults        empty; only when faults may be without effect
// Snapshot files are checked like any other (state/snapshot_file.h), the capture like any other.
#pragma once

#include <filesystem>
#include <optional>

#include "capture/capture.h"
#include "probe/probe.h"
#include "state/snapshot.h"

namespace draftprobe::probe {

std::filesystem::path suspended_capture(const std::filesystem::path& directory);

// `base` may be null.
Status write_suspended_state(const std::filesystem::path& directory, const state::Snapshot& snapshot,
                             const state::Snapshot* base);

Status write_suspended_tokens(const std::filesystem::path& directory, const ControlTokens& tokens);

// RestoreTreatment::idle_faults, which no capture records.
Status write_suspended_idle_faults(const std::filesystem::path& directory);

struct SuspendedArm {
    CaptureHeader header;
    state::Snapshot snapshot;
    std::optional<state::Snapshot> base;
};
// Errors: those of CaptureReader and read_snapshot.
Result<SuspendedArm> read_suspended(const std::filesystem::path& directory);

// Makes the second process's request, treatment, KV format, verify width and lockstep those of the first, whatever its
// own command line says of them. Everything else that reaches a byte of state is compared when the snapshot is
// restored. Errors: corrupt (no capture of a restored arm, or a file of another form), those of CaptureReader.
Status adopt_suspended(const std::filesystem::path& directory, ProbeRequest& request, ProbeSettings& settings);

}  // namespace draftprobe::probe
