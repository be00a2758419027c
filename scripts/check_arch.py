#!/usr/bin/env python3
"""Fails when a folder under src/ includes a folder that does not stand behind its arrow (see src/README.md)."""

import pathlib
import re
import sys

# folder -> folders it may include directly. The closure of "LINK" in src/CMakeLists.txt says the same.
ENGINE = ["base", "formats", "numerics", "model", "state", "budget", "decode"]
ARROWS = {
    "base": [],
    "formats": ["base"],
    "text": ["base"],
    "numerics": ["base"],
    "model": ["base", "formats", "numerics"],
    "state": ["base", "numerics"],
    "budget": ["base"],
    "decode": ["base", "formats", "numerics", "model", "state", "budget"],
    "instrument": [*ENGINE],
    "capture": ["base"],
    "probe": [*ENGINE, "instrument", "text", "capture"],
    "compare": ["base", "capture"],
    "replay": ["base", "budget", "capture", "compare"],
    "report": ["base", "capture", "compare"],
    "study": [*ENGINE, "instrument", "text", "capture", "probe", "compare"],
    "bench": [*ENGINE, "text", "capture", "probe", "compare"],
    "cli": [*ENGINE, "instrument", "text", "capture", "probe", "compare", "replay", "report", "study", "bench"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve() / "src"
    problems = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(root).parts[0]
        if folder not in ARROWS:
            problems.append(f"{path}: folder '{folder}' has no arrows in scripts/check_arch.py; add it there")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            place = f"{path.relative_to(root.parent)}:{number}"
            if "/" not in match.group(1) or target not in ARROWS:
                problems.append(f'{place}: include "{match.group(1)}" must be written as "folder/file.h" below src/')
            elif target != folder and target not in ARROWS[folder]:
                problems.append(f"{place}: '{folder}' may not include '{target}'; allowed: {', '.join(ARROWS[folder])}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
