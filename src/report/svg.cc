#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace draftprobe {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 220;
constexpr double kLeft = 64;
constexpr double kRight = 12;
constexpr double kTop = 10;
constexpr double kBottom = 34;
constexpr int kTicks = 4;

struct Frame {
    double x_min = 0;
    double x_max = 1;
    double y_max = 1;

    double x(double value) const { return kLeft + (value - x_min) / (x_max - x_min) * (kWidth - kLeft - kRight); }
    double y(double value) const {
        const double inside = std::isfinite(value) ? std::clamp(value / y_max, 0.0, 1.0) : 1.0;
        return kHeight - kBottom - inside * (kHeight - kTop - kBottom);
    }
};

// The smallest of 1, 2, 5 times a power of ten that is not below the value.
double round_up(double value) {
    const double power = std::pow(10.0, std::floor(std::log10(value)));
    for (double factor : {1.0, 2.0, 5.0, 10.0}) {
        if (factor * power >= value * (1 - 1e-12)) return factor * power;
    }
    return value;
}

Frame frame_of(const Chart& chart) {
    Frame frame;
    bool any = false;
    double highest = chart.y_max;
    for (const ChartLine& line : chart.lines) {
        for (const auto& [x, y] : line.points) {
            frame.x_min = any ? std::min(frame.x_min, x) : x;
            frame.x_max = any ? std::max(frame.x_max, x) : x;
            any = true;
            if (chart.y_max == 0 && std::isfinite(y)) highest = std::max(highest, y);
        }
    }
    if (frame.x_max <= frame.x_min) frame.x_max = frame.x_min + 1;
    frame.y_max = chart.y_max > 0 ? chart.y_max : highest > 0 ? round_up(highest) : 1;
    return frame;
}

std::string axes(const Frame& frame, const Chart& chart) {
    std::string out;
    for (int i = 0; i <= kTicks; ++i) {
        const double value = frame.y_max * i / kTicks;
        const double y = frame.y(value);
        out += fmt::format(
            "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>"
            "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>",
            kLeft, y, kWidth - kRight, y, kLeft - 6, y + 4, value);
    }
    out += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{:.6g}</text>"
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>"
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
        kLeft, kHeight - kBottom + 16, frame.x_min, kWidth - kRight, kHeight - kBottom + 16, frame.x_max,
        (kLeft + kWidth - kRight) / 2, kHeight - 4, html_escape(chart.x_label));
    return out;
}

std::string polyline(const Frame& frame, const ChartLine& line) {
    std::string points;
    std::string marks;
    double before = 0;
    for (std::size_t i = 0; i < line.points.size(); ++i) {
        const auto& [x, y] = line.points[i];
        if (line.stepped && i > 0) points += fmt::format("{:.1f},{:.1f} ", frame.x(x), frame.y(before));
        points += fmt::format("{:.1f},{:.1f} ", frame.x(x), frame.y(y));
        before = y;
        if (!std::isfinite(y)) {
            marks += fmt::format("<circle class=\"{} hollow\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", line.css,
                                 frame.x(x), frame.y(y));
        }
    }
    if (line.points.size() == 1) {
        const auto& [x, y] = line.points.front();
        return fmt::format("<circle class=\"{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", line.css, frame.x(x),
                           frame.y(y)) +
               marks;
    }
    return fmt::format("<polyline class=\"{}\" points=\"{}\"/>", line.css, points) + marks;
}

std::string legend(const std::vector<ChartLine>& lines) {
    std::string out = "<div class=\"legend\">";
    for (const ChartLine& line : lines) {
        if (line.points.empty()) continue;
        out += fmt::format("<span><i class=\"key {}\"></i>{}</span>", line.css, html_escape(line.name));
    }
    return out + "</div>";
}

std::string open_svg(double height, std::string_view title) {
    return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">", kWidth, height,
                       html_escape(title));
}

}  // namespace

std::string html_escape(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_sequence(text, i);
        const char c = text[i];
        if (length == 0) {
            out += "\xef\xbf\xbd";
            ++i;
            continue;
        }
        if (length > 1) {
            out += text.substr(i, length);
        } else if (c == '&') {
            out += "&amp;";
        } else if (c == '<') {
            out += "&lt;";
        } else if (c == '>') {
            out += "&gt;";
        } else if (c == '"') {
            out += "&quot;";
        } else if (c == '\'') {
            out += "&#39;";
        } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            out += "\xef\xbf\xbd";
        } else {
            out += c;
        }
        i += length;
    }
    return out;
}

std::string chart_figure(const Chart& chart) {
    std::string out = fmt::format("<figure><figcaption>{}</figcaption>", html_escape(chart.title));
    const bool any =
        std::any_of(chart.lines.begin(), chart.lines.end(), [](const auto& line) { return !line.points.empty(); });
    if (!any) return out + "<p class=\"quiet\">Nothing was recorded for this.</p></figure>\n";
    const Frame frame = frame_of(chart);
    out += legend(chart.lines);
    out += open_svg(kHeight, chart.title);
    out += axes(frame, chart);
    for (const ChartLine& line : chart.lines) {
        if (!line.points.empty()) out += polyline(frame, line);
    }
    out += "</svg>";
    if (!chart.note.empty()) out += fmt::format("<p class=\"quiet\">{}</p>", html_escape(chart.note));
    if (!chart.y_label.empty()) out += fmt::format("<p class=\"quiet\">Vertical: {}</p>", html_escape(chart.y_label));
    return out + "</figure>\n";
}

namespace {

// Verdicts that occur, in the order of their exit status.
std::vector<Verdict> verdicts_of(const std::vector<StripPoint>& points) {
    std::vector<Verdict> verdicts;
    for (const StripPoint& point : points) {
        if (std::find(verdicts.begin(), verdicts.end(), point.verdict) == verdicts.end())
            verdicts.push_back(point.verdict);
    }
    std::sort(verdicts.begin(), verdicts.end(),
              [](Verdict a, Verdict b) { return std::pair(verdict_exit(a), a) < std::pair(verdict_exit(b), b); });
    return verdicts;
}

}  // namespace

std::string strip_figure(const PageStrip& strip) {
    if (strip.points.empty()) return {};
    constexpr double kBars = 80;
    constexpr double kMarks = 18;
    constexpr double kLabels = 130;
    const std::vector<Verdict> verdicts = verdicts_of(strip.points);
    std::int64_t most = 1;
    for (const StripPoint& point : strip.points) most = std::max(most, point.differing);
    const double slot = (kWidth - kLabels - kRight) / static_cast<double>(strip.points.size());
    const double bottom = kTop + kBars;
    const double height = bottom + kMarks * static_cast<double>(verdicts.size()) + 40;
    std::string out = fmt::format("<figure><figcaption>Differing lane-cycles and verdict by {}</figcaption>",
                                  html_escape(strip.variable));
    out += open_svg(height, "differing lane-cycles and verdict by value");
    const auto label = [&](double y, std::string_view text) {
        out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLabels - 8,
                           y, text);
    };
    label(kTop + 8, fmt::format("{} differ", most));
    label(bottom, "0");
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", kLabels,
                       bottom, kWidth - kRight, bottom);
    for (std::size_t v = 0; v < verdicts.size(); ++v)
        label(bottom + kMarks * static_cast<double>(v) + 14, verdict_name(verdicts[v]));
    for (std::size_t i = 0; i < strip.points.size(); ++i) {
        const StripPoint& point = strip.points[i];
        const double x = kLabels + slot * static_cast<double>(i);
        const double width = std::max(0.5, slot * 0.85);
        const std::string title =
            fmt::format("<title>{} {}: {}, {} of {} matched lane-cycles differ</title>", html_escape(strip.variable),
                        point.value, verdict_name(point.verdict), point.differing, point.matched);
        const double bar = kBars * static_cast<double>(point.differing) / static_cast<double>(most);
        out += fmt::format("<rect class=\"bar\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">{}</rect>",
                           x, bottom - bar, width, bar, title);
        const auto line =
            static_cast<double>(std::find(verdicts.begin(), verdicts.end(), point.verdict) - verdicts.begin());
        out += fmt::format("<rect class=\"v-{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"12\">{}</rect>",
                           verdict_class(point.verdict), x, bottom + kMarks * line + 4, width, title);
    }
    const double below = bottom + kMarks * static_cast<double>(verdicts.size()) + 16;
    out += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text><text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text><text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
        kLabels, below, strip.points.front().value, kWidth - kRight, below, strip.points.back().value,
        (kLabels + kWidth - kRight) / 2, below + 14, html_escape(strip.variable));
    return out + "</svg></figure>\n";
}

std::string_view verdict_class(Verdict verdict) {
    switch (verdict) {
        case Verdict::same: return "same";
        case Verdict::changed: return "changed";
        case Verdict::corrupt: return "corrupt";
        default: return "other";
    }
}

std::string ledger_figure(const std::vector<LedgerRow>& rows, const std::optional<FirstDifference>& first) {
    constexpr double kRowHeight = 22;
    constexpr double kLabels = 350;
    std::string out = "<figure><figcaption>Ledger: where each position's state came from</figcaption>";
    Position end = 0;
    for (const LedgerRow& row : rows) end = std::max(end, row.component.last);
    if (rows.empty() || end == 0) return out + "<p class=\"quiet\">No ledger below level 2.</p></figure>\n";
    out += "<div class=\"legend\">";
    for (std::string_view source : {"computed", "restored", "carried", "none"}) {
        out += fmt::format("<span><i class=\"key s-{}\"></i>{}</span>", source, source);
    }
    out += "</div>";
    const auto x = [&](Position p) {
        return kLabels + static_cast<double>(p) / static_cast<double>(end) * (kWidth - kLabels - kRight);
    };
    out += open_svg(kRowHeight * static_cast<double>(rows.size()) + 20, "ledger map");
    double y = 4;
    for (const LedgerRow& row : rows) {
        const LedgerComponent& c = row.component;
        std::string label = fmt::format("{} {} lane {}: {}", row.arm, row.event, row.lane, c.component);
        if (c.rows_claimed != c.rows_written)
            label += fmt::format(" ({} of {} written)", c.rows_written, c.rows_claimed);
        const bool marked =
            first && row.arm == "treated" && row.event == first->stage && c.component == first->component;
        if (marked) label = "first difference > " + label;
        out += fmt::format("<text class=\"tick{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                           marked ? " marked" : "", kLabels - 8, y + 12, html_escape(label));
        out += fmt::format("<rect class=\"track\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\"/>", x(0), y,
                           x(end) - x(0));
        if (marked) {
            out += fmt::format("<rect class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\"/>",
                               x(0) - 2, y - 2, x(end) - x(0) + 4);
        }
        for (const SourceRange& range : c.sources) {
            const Position last = std::min(range.last, end);
            if (range.first >= last) continue;
            out += fmt::format(
                "<rect class=\"s-{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\"><title>[{}, {}) "
                "{}</title></rect>",
                row_source_name(range.source), x(range.first), y, std::max(1.0, x(last) - x(range.first)), range.first,
                range.last, row_source_name(range.source));
        }
        y += kRowHeight;
    }
    out += fmt::format(
        "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">0</text><text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">position {}</text></svg></figure>\n",
        x(0), y + 10, x(end), y + 10, end);
    return out;
}

}  // namespace draftprobe
