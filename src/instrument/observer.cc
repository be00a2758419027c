#include "instrument/observer.h"

template class draftprobe::decode::Engine<draftprobe::instrument::SinkObserver>;
