// What one arm is made of besides its order of events, for whoever runs arms: probe/probe.cc runs one request on an
// engine of its own, study/plan_run.cc several on one engine.
#pragma once

#include "capture/writer.h"
#include "decode/request.h"
#include "probe/probe.h"
#include "probe/recorder.h"
#include "state/identity.h"

namespace draftprobe::probe {

// Effective settings that reach the bytes of an arm's state; they are part of a snapshot's namespace.
std::vector<Setting> state_settings(const Assembly& assembly, const ProbeSettings& settings);

// The namespace of a snapshot: every identity group and setting that reaches its bytes, and the chat template, so that
// state of one mode is never taken for another's. The prompt is not in it: a prefix may serve many.
state::StateIdentity state_identity(const Assembly& assembly, const TemplateIdentity& chat_template,
                                    const ProbeSettings& settings);

// The request as the engine takes it; an adaptive budget's controller is not set.
decode::Request engine_request(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings);

// Positions that a lane needs for the request.
std::size_t lane_positions(const Assembly& assembly, const ProbeRequest& request);

// The faults that an arm takes: a restored one those of a restore, the control those of an arm that should compute, and
// every other arm none.
std::vector<instrument::Fault> faults_of(const RestoreTreatment& treatment, Arm arm);

CaptureShape capture_shape(const Assembly& assembly, const ProbeSettings& settings);

RecorderOptions recorder_options(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings,
                                 Arm arm, const decode::EngineCore& core);

// The capture's header: identity, settings, environment, request and the treatment's forms and faults. What the run
// recorded, its lanes and its tier are the caller's to add.
CaptureHeader arm_header(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
                         const decode::EngineCore& core);

}  // namespace draftprobe::probe
