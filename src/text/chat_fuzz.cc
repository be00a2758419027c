// libFuzzer target. The first byte chooses thinking and effort, the rest is a chat file. What is accepted renders to
// turns whose marks are the template's alone, as UTF-8, and the same twice.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/chat.h"

using namespace draftprobe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const ChatMode mode{(data[0] & 1) != 0, (data[0] & 2) != 0 ? "low" : ""};
    const auto chat = parse_chat({reinterpret_cast<const char*>(data) + 1, size - 1}, "fuzz");
    if (!chat.ok()) return 0;
    if (chat->messages.empty() || chat->messages.back().role != ChatRole::user) std::abort();
    const RenderedChat rendered = render_chat(*chat, mode);
    std::size_t starts = 0;
    for (const RenderedPart& part : rendered.parts) starts += part.token && part.text == "<|im_start|>" ? 1 : 0;
    const bool own_system = mode.thinking && !mode.effort.empty() && chat->messages.front().role != ChatRole::system;
    if (starts != chat->messages.size() + (own_system ? 2 : 1)) std::abort();
    for (std::size_t i = 1; i < rendered.parts.size(); ++i) {
        if (!rendered.parts[i].token && !rendered.parts[i - 1].token) std::abort();
    }
    if (utf8_first_error(rendered.text()) || rendered.text() != render_chat(*chat, mode).text()) std::abort();
    return 0;
}
