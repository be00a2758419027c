// A request in progress as plain values and back (state/request_record.h): what suspending and resuming it needs beside
// its lane's rows.
#pragma once

#include <memory>

#include "budget/controller.h"
#include "decode/request.h"
#include "state/request_record.h"

namespace draftprobe::decode {

state::RequestRecord to_record(const Request& request, std::size_t emitted);

// `seed`: the running engine's own frozen budget seed, null when there is none. Errors: corrupt (values that no request
// can have), mismatch (the record's controller reads another seed).
Result<Request> from_record(const state::RequestRecord& record, std::shared_ptr<const budget::Seed> seed);

}  // namespace draftprobe::decode
