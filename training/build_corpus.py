"""Build the training corpus: one JSON-lines file of documents per split.

Run `fetch` once to download the packages with apt-get and pip, then `build`. Both take the work folder. Every
document is {"domain", "source", "text"}; a document goes to the validation split when a hash of its text says so, so
the split does not depend on the order of the packages.
"""

import argparse
import gzip
import hashlib
import html.parser
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import unicodedata
import zipfile
from collections import Counter

import scripted
import sources

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|mask|>")
REFUSED = re.compile(r"General Public License|\bA?L?GPL|Mozilla Public License|NVIDIA C|Creative Commons")
SKIPPED_FOLDERS = re.compile(
    r"/(_?vendor(ed)?|_vendored_packages|extern(s|als?)?|third_party|preprocessed|_distutils)/"
)
CPP_SUFFIXES = (".h", ".hpp", ".cc", ".cpp", ".c", ".ipp", ".inc", ".def")
MAX_CHARS = 120_000
VALID_SHARE = 0.015


class TextOfHtml(html.parser.HTMLParser):
    """Keeps the readable text of a documentation page; preformatted blocks keep their line breaks."""

    BLOCKS = {"p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "dt", "dd", "pre", "table", "br", "section"}
    SILENT = {"script", "style", "head", "nav", "footer"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts = []
        self.silent = 0
        self.pre = 0

    def handle_starttag(self, tag, attrs):
        classes = dict(attrs).get("class") or ""
        if self.silent:
            if tag == self.silent_tag:
                self.silent += 1
            return
        if tag in self.SILENT or "sphinxsidebar" in classes or classes in ("related", "footer", "header", "headerlink"):
            self.silent, self.silent_tag = 1, tag
            return
        if tag == "pre":
            self.pre += 1
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if self.silent:
            if tag == self.silent_tag:
                self.silent -= 1
            return
        if tag == "pre":
            self.pre = max(0, self.pre - 1)
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.silent:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))

    def text(self):
        joined = "".join(self.parts).replace("\u00b6", "")
        lines = [line.rstrip() for line in joined.split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def html_to_text(page):
    parser = TextOfHtml()
    parser.feed(page)
    return parser.text()


def deb_files(path):
    """Regular files of a Debian package as (name, bytes)."""
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isreg():
                yield member.name, archive.extractfile(member).read()


def wheel_files(path):
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield "/" + info.filename, archive.read(info)


def service_model_documents(data):
    """Slices a botocore service model into small indented JSON documents."""
    model = json.loads(data)
    for section in ("operations", "shapes"):
        items = list(model.get(section, {}).items())
        for start in range(0, len(items), 24):
            part = {"metadata": {"section": section}, section: dict(items[start : start + 24])}
            text = json.dumps(part, indent=2)
            yield re.sub(r"</?[a-z]+[^>\"]{0,80}>", "", text)


def clean(raw):
    """Normalised text of a document, or None when it is unfit."""
    try:
        text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError:
        return None
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n")).strip("\ufeff \n") + "\n"
    if len(text) < 300 or any(special in text for special in SPECIALS) or REFUSED.search(text[:6000]):
        return None
    lines = text.split("\n")
    if len(text) / len(lines) > 160 or len(set(lines)) < 0.35 * len(lines):
        return None
    letters = sum(map(str.isalpha, text[:20_000]))
    if letters < 0.35 * len(text[:20_000]) or sum(ord(c) > 127 for c in text[:20_000]) > 0.05 * len(text[:20_000]):
        return None
    return text[:MAX_CHARS]


def package_documents(name, kind, files):
    """Yields (domain, text) of a package's usable files."""
    for path, data in files:
        if SKIPPED_FOLDERS.search(path):
            continue
        if (
            kind == "html"
            and path.endswith((".html", ".html.gz"))
            and not re.search(r"genindex|search\.|/_modules/", path)
        ):
            page = gzip.decompress(data) if path.endswith(".gz") else data
            yield "prose", clean(html_to_text(page.decode("utf-8", "replace")))
        elif kind == "cpp" and (path.endswith(CPP_SUFFIXES) or "/c++/v1/" in path):
            yield "cpp", clean(data)
        elif kind == "python" and path.endswith(".py"):
            yield "python", clean(data)
        elif name == "botocore" and path.endswith("service-2.json.gz"):
            for text in service_model_documents(gzip.decompress(data)):
                yield "json", clean(text)


def hash_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def fetch(work):
    for folder in ("deb", "wheels"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    for package in sources.DEBIAN:
        subprocess.run(["apt-get", "download", package], check=True, cwd=work / "deb")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(work / "wheels")]
    subprocess.run(command + sorted(sources.WHEELS), check=True)


def build(work):
    chosen, report, seen, domain_chars = [], {}, set(), Counter()
    plans = []
    for package, (licence, kind, cap) in sources.DEBIAN.items():
        path = next((work / "deb").glob(f"{package}_*.deb"))
        plans.append((package, path.name.split("_")[1], licence, kind, cap, deb_files(path)))
    wheels = {p.name.split("-")[0].lower().replace("_", "-"): p for p in (work / "wheels").glob("*.whl")}
    for package, licence in sources.WHEELS.items():
        path = wheels[package.lower().replace("_", "-")]
        plans.append((package, path.name.split("-")[1], licence, "python", sources.WHEEL_CAP, wheel_files(path)))
    for package, version, licence, kind, cap, files in plans:
        documents, chars = [], Counter()
        for domain, text in package_documents(package, kind, files):
            if text is not None and (digest := hash_of(text)) not in seen:
                seen.add(digest)
                documents.append((digest, domain, text))
        for digest, domain, text in sorted(documents):
            limit = sources.DOMAIN_CAP["json"] if domain == "json" else cap
            if chars[domain] + len(text) > limit or domain_chars[domain] + len(text) > sources.DOMAIN_CAP[domain]:
                continue
            chars[domain] += len(text)
            domain_chars[domain] += len(text)
            chosen.append((digest, domain, package, text))
        report[package] = {"version": version, "licence": licence, "characters": dict(chars)}
    for domain, text in scripted.documents():
        chosen.append((hash_of(text), domain, "scripted", text))
        domain_chars[domain] += len(text)
    chosen.sort()
    outputs = {split: open(work / f"{split}.jsonl", "w") for split in ("train", "valid")}
    for digest, domain, package, text in chosen:
        split = "valid" if int(digest[-8:], 16) < VALID_SHARE * 2**32 else "train"
        outputs[split].write(json.dumps({"domain": domain, "source": package, "text": text}) + "\n")
    for output in outputs.values():
        output.close()
    summary = {"documents": len(chosen), "characters": dict(domain_chars), "sources": report}
    (work / "corpus-report.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({"documents": len(chosen), "characters": dict(domain_chars)}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=("fetch", "build"))
    parser.add_argument("work", type=pathlib.Path)
    arguments = parser.parse_args()
    {"fetch": fetch, "build": build}[arguments.step](arguments.work)


if __name__ == "__main__":
    main()
