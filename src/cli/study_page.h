// Studies as sections of the page that --report writes.
#pragma once

#include <string>

#include "report/page_section.h"
#include "study/factors.h"
#include "study/minimise.h"
#include "study/plan_run.h"
#include "study/sweep.h"

namespace draftprobe::cli {

PageSection factors_section(const study::FactorStudy& study);
PageSection sweep_section(const study::Sweep& sweep);
PageSection plan_section(const study::PlanResult& result);
// `command` repeats the minimised case.
PageSection minimised_section(const study::Minimised& minimised, const std::string& command);

}  // namespace draftprobe::cli
