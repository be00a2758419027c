// The engine without an observer: what `generate` and `bench` run.
#include "decode/engine.h"

namespace draftprobe::decode {

template class Engine<NoObserver>;

}  // namespace draftprobe::decode
