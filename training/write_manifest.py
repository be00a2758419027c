"""Write selection.json beside a draft: its files with their digests, and how it was trained (docs/selection.md).

    python write_manifest.py strong ../models/exports/strong

What the recipe says comes from drafts.json, the steps that were made from results.json.
"""

import argparse
import hashlib
import json
import pathlib

from train_draft import recipe_named

RESULTS = pathlib.Path(__file__).with_name("results.json")
NOT_LISTED = ("selection.json", "MODEL_CARD.md")
# Every draft here was trained on raw text, with the taps of the 4-bit export of its target.
TEMPLATE = {"digest": "none", "thinking": "none", "effort": "none"}
PRECISION = "affine4-g64"


def listed(path):
    content = path.read_bytes()
    return {"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def manifest(name, folder):
    recipe, results = recipe_named(name), json.loads(RESULTS.read_text())
    paths = sorted(path for path in folder.iterdir() if path.name not in NOT_LISTED)
    return {
        "selection_version": 1,
        "files": [listed(path) for path in paths],
        "training": {
            "run": f"{name} {results['date']}",
            "seed": recipe.seed,
            "steps": results["drafts"][name]["steps"],
            "objective": recipe.objective,
            "data": recipe.data,
        },
        "template": TEMPLATE,
        "target": {"precision": PRECISION, "name": recipe.target},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the draft's name in drafts.json")
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    text = json.dumps(manifest(arguments.name, arguments.folder), indent=2)
    (arguments.folder / "selection.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
