// What a restored arm records of its request: what came back against what was saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capture/test_capture.h"
#include "compare/ledger_diff.h"

namespace draftprobe {
namespace {

void add_request(CaptureHeader& header, std::string_view event, const std::string& content) {
    for (LedgerEvent& entry : header.ledger) {
        if (entry.event != event) continue;
        LedgerComponent component;
        component.component = "request";
        component.first = component.last = component.base = entry.position;
        component.digest = fixture::digest_of(content);
        entry.components.push_back(component);
    }
}

TEST(LedgerRequest, WhatARestoreLostOfItsRequestIsFoundThere) {
    const CaptureHeader control = fixture::make_arm(Arm::fresh).header;
    for (const bool lost : {false, true}) {
        CaptureHeader treated = fixture::make_arm(Arm::restored).header;
        add_request(treated, "snapshot", "with a controller");
        add_request(treated, "restore", lost ? "without" : "with a controller");
        Findings findings;
        const LedgerVerdict verdict = compare_ledgers(control, treated, findings);
        EXPECT_EQ(verdict.hard, lost);
        ASSERT_EQ(findings.first().has_value(), lost);
        if (!lost) continue;
        EXPECT_EQ(findings.first()->stage, "restore");
        EXPECT_EQ(findings.first()->component, "request");
        EXPECT_THAT(findings.first()->detail, testing::HasSubstr("differs from the snapshot it was restored from"));
    }
}

}  // namespace
}  // namespace draftprobe
