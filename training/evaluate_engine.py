"""Retained tokens per cycle of the bundled pair as the engine itself runs it, on held-out prompts.

    python evaluate_engine.py WORK ../build/release/src/draftprobe ../models/mini-dense-mlx4 ../models/mini-dense-draft

Greedy, all rows verified, 256-token prompts, at most 257 new tokens. "Non-repeating" are the prompts whose continuation
has at least 48 tokens before a 16-gram occurs for the second time; they are run again up to that point. Means are over
requests.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

from data import Validation

PROMPT = 256
NEW_TOKENS = 257
NGRAM = 16
SHORTEST_KEPT = 48


def generate(arguments, prompt, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompt, file)
        file.flush()
        command = [arguments.draftprobe, "generate", "--target", arguments.target, "--draft", arguments.draft]
        command += ["--prompt-ids", file.name, "--max-tokens", str(tokens), "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def first_repeat(tokens):
    seen = set()
    for i in range(len(tokens) - NGRAM + 1):
        gram = tuple(tokens[i : i + NGRAM])
        if gram in seen:
            return i
        seen.add(gram)
    return len(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path, help="folder with valid.npz")
    for name in ("draftprobe", "target", "draft"):
        parser.add_argument(name)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1234)
    arguments = parser.parse_args()
    validation = Validation(arguments.work, "cpu")
    for domain in ("python", "cpp"):
        everything, kept = [], []
        for prompt in validation.prompts(domain, PROMPT, arguments.prompts, arguments.seed).tolist():
            whole = generate(arguments, prompt, NEW_TOKENS)
            everything.append(whole["mean_retained"])
            end = first_repeat(whole["ids"])
            if end >= SHORTEST_KEPT:
                kept.append(generate(arguments, prompt, end)["mean_retained"])
        print(
            f"{domain}: all {sum(everything) / len(everything):.2f} ({len(everything)} prompts), "
            f"non-repeating {sum(kept) / len(kept):.2f} ({len(kept)} prompts)"
        )


if __name__ == "__main__":
    main()
