#!/usr/bin/env python3
"""Makes the lists of tokens worth drafting that come with the package, pyspec/speculation/data/*.txt.

    make lists                                        # on Debian: fetches texts, counts, writes the lists
    python tools/draft_vocab_lists.py --models smollm2 --size 8192 --output /tmp

What counts:

  * English prose and code that is free to use, each source alike, whatever its length: Debian packages (PACKAGES),
    fetched with apt-get and taken apart with dpkg-deb; this Python's own library; llama.cpp's source.
  * What the model itself writes: beginnings made from WordNet's common nouns, written on with a temperature.
  * Where that helps, the order of its vocabulary, in which the tokenizer's training found pieces to be frequent: it
    knows more texts than these. As if a token's frequency were one over its place (Zipf's law).

Everything is kept in build/lists/ and made once. The texts that models write depend on the machine in their last bits,
so a list that is made again is alike, not equal.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import random
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyspec import Engine, Model, SamplingParams, models
from pyspec._llama import Vocab
from pyspec.bench.prompts import chatml
from pyspec.speculation.draft_vocab import by_rank
from pyspec.speculation.vocab_list import write_list
from pyspec.vocab_lists import Source, build, count
from pyspec.vocab_lists.build import header

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "lists"
DATA = ROOT / "pyspec" / "speculation" / "data"

# Debian packages, and where their texts are. What is called .html or .page loses its tags.
PACKAGES = {
    "fortunes": ("usr/share/games/fortunes/*",),
    "anarchism": ("**/*.html",),
    "jargon-text": ("**/*.html", "usr/share/doc/jargon-text/jargon*.gz"),
    "wordnet-base": ("usr/share/wordnet/data.*",),
    "gnome-user-docs": ("usr/share/help/C/**/*.page",),
    "debian-handbook": ("usr/share/doc/debian-handbook/html/en-US/*.html",),
    "debian-reference-en": ("**/*.html",),
    "rust-doc": ("usr/share/doc/rust-doc/html/*book*/*.html", "usr/share/doc/rust-doc/html/nomicon/*.html"),
    "python3.11-doc": ("**/*.rst.txt",),
    "perl-doc": ("**/*.pod",),
    "nodejs-doc": ("**/*.md", "**/*.md.gz"),  # what Markdown looks like
}
NOUNS = "usr/share/wordnet/cntlist.rev"


@dataclass(frozen=True)
class Recipe:
    """Size of a list, whether the model answers or goes on with a text, how much its vocabulary's order counts."""

    size: int
    chat: bool
    share_of_order: float


# Gemma's order is that of texts in all languages, and says little about English and code.
LISTS = {"gemma3": Recipe(16384, False, 0.0), "smollm2": Recipe(32768, True, 0.3)}

# Of all counts together; the rest are the corpora's.
SHARE_OF_OWN = 0.2
ZIPF_OFFSET = 1000

MOST = 2_000_000  # characters of a source
N_OWN = 1350  # texts a model writes

OPENINGS = (
    "An article about {n}.\n\n", "def make_{n}(", "The story begins with a {n}. ", 'class {N}:\n    """',
    "Everything you need to know about {n}:\n\n", "/* {n}.c */\n#include <stdio.h>\n\n",
    '"I never thought about the {n}," she said. ', "function {n}(", "The history of the {n} goes back to",
    "CREATE TABLE {n} (", "How to choose a {n}. First,", "fn {n}(", "Dear editor,\n\nI am writing about the {n} that",
    "public class {N} {{\n", "# Introduction to {n}\n\n", "import os\nimport sys\n\n# {n}\n",
    "Question: what is {n}?\nAnswer:", "In this essay I want to argue that {n}",
)  # fmt: skip
REQUESTS = (
    "Write a short story about a {n}.", "Write a Python function that works with a {n}, with tests.",
    "Explain {n} in simple words.", "Write a C program about a {n}.", "Write an essay about {n}.",
    "Write a JavaScript class called {N}.", "Give me five facts about {n}.", "Design an SQL schema for {n}.",
    "What is the difference between {n} and {m}?", "Write an HTML page about {n}.",
    "Write a dialogue between two friends about {n}.", "Write a shell script that handles {n}.",
    "How do I find a good {n}?", "Write a poem about {n}.", "Summarize the history of {n}.",
    "Write a letter to a colleague about a {n}.",
)  # fmt: skip


def unpacked(package: str) -> Path:
    """The files of a Debian package."""
    folder = WORK / "packages" / package
    if not folder.exists():
        (WORK / "archives").mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=WORK / "archives", check=True)
        (archive,) = (WORK / "archives").glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    return folder


def version(package: str) -> str:
    (archive,) = (WORK / "archives").glob(f"{package}_*.deb")
    return archive.name.split("_")[1].replace("%3a", ":")


def text_of(path: Path) -> str:
    """A file as text: unpacked, without tags, without WordNet's tables."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = data.decode("utf-8", "replace").replace("\0", "")
    if path.suffix in (".html", ".page"):
        text = without_tags(text)
    if path.parent.name == "wordnet":
        text = "\n".join(line.split(" | ", 1)[1].strip() for line in text.splitlines() if " | " in line)
    if path.parent.name == "fortunes":
        text = text.replace("\n%\n", "\n\n")
    return text


def without_tags(text: str) -> str:
    text = re.sub(r"(?is)<(script|style|nav|head)\b.*?</\1>|<!--.*?-->", " ", text)
    text = re.sub(r"(?i)</?(p|div|h\d|li|br|tr|ul|ol|table|section)\b[^>]*>", "\n", text)
    text = html.unescape(re.sub(r"(?s)<[^>]*>", "", text))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text))


def sources() -> Iterator[tuple[str, Callable[[], Iterable[Path]]]]:
    """(name, files) of everything that is counted but for the models' own texts."""
    for package, patterns in PACKAGES.items():
        folder = unpacked(package)
        yield (
            f"{package} {version(package)}",
            lambda f=folder, p=patterns: [
                path for pattern in p for path in sorted(f.glob(pattern)) if path.is_file() and path.suffix != ".dat"
            ],
        )
    library = Path(sysconfig.get_path("stdlib"))
    yield "Python's library", lambda: [
        path for path in sorted(library.rglob("*.py"))
        if not {"site-packages", "dist-packages", "test", "tests", "encodings", "lib2to3"} & set(path.parts)
    ]  # fmt: skip
    vendored = ROOT / "vendor" / "llama.cpp"
    yield (
        "llama.cpp",
        lambda: [
            path
            for path in sorted(vendored.rglob("*"))
            if path.suffix in (".c", ".cpp", ".h", ".cu") and path.is_file()
        ],
    )


def corpus() -> dict[str, Path]:
    """One file of text for each source: pieces from all over it, up to MOST characters."""
    found = {}
    for name, files in sources():
        path = WORK / "corpus" / (re.sub(r"\W+", "-", name) + ".txt")
        if not path.exists():
            text = "\n".join(map(text_of, files()))
            size = 20_000
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            random.Random(1).shuffle(pieces)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(pieces[: MOST // size]), encoding="utf-8")
        found[name] = path
    return found


def prompts(chat: bool) -> list[str]:
    """Beginnings of texts, or requests, on things that are often spoken of."""
    uses: dict[str, int] = {}
    for line in (unpacked("wordnet-base") / NOUNS).read_text(encoding="latin-1").splitlines():
        key, _, number = line.split()
        noun, _, sense = key.partition("%")
        if sense.startswith("1") and re.fullmatch(r"[a-z]{3,}", noun):
            uses[noun] = uses.get(noun, 0) + int(number)
    rng = random.Random(5)
    nouns = rng.sample(sorted(noun for noun, n in uses.items() if n >= 3), 2 * N_OWN)
    templates = REQUESTS if chat else OPENINGS
    texts = [
        templates[i % len(templates)].format(n=nouns[i], m=nouns[-1 - i], N=nouns[i].capitalize())
        for i in range(N_OWN)
    ]  # fmt: skip
    return [chatml(text) for text in texts] if chat else texts


def own_texts(name: str, chat: bool, n_texts: int) -> Path:
    """Token ids a model writes, a text a line; goes on where an earlier run was ended."""
    path = WORK / f"written-by-{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    n_done = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    asked = prompts(chat)[:n_texts]
    if n_done >= len(asked):
        return path
    params = SamplingParams(temperature=0.8, max_tokens=192)
    with (
        Engine(models.resolve(name), speculation=None, n_slots=8, n_ctx=512, prefix_reuse=False) as engine,
        path.open("a", encoding="utf-8") as file,
    ):
        for start in range(n_done, len(asked), 32):
            running = [engine.submit(text, params.replace(seed=start)) for text in asked[start : start + 32]]
            for generation in running:
                file.write(json.dumps(list(generation.result().token_ids)) + "\n")
            file.flush()
            print(f"{name}: {start + len(running)} of {len(asked)} texts", flush=True)
    return path


def own_counts(path: Path, n_vocab: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    counts = np.zeros(n_vocab, np.int64)
    for line in path.read_text(encoding="utf-8").splitlines():
        np.add.at(counts, json.loads(line), 1)
    return counts


def order(vocab: Vocab) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Frequencies by a token's place among the ordinary ones."""
    places = list(by_rank(vocab))
    frequencies = np.zeros(vocab.n_tokens)
    frequencies[places] = 1 / (ZIPF_OFFSET + np.arange(len(places)))
    return frequencies / frequencies.sum()


def make(name: str, recipe: Recipe, n_texts: int, output: Path) -> None:
    texts = corpus()
    own = own_texts(name, recipe.chat, n_texts)
    path = models.resolve(name)
    counted = count(str(path), [Source(str(file)) for file in texts.values()], by_source=True).by_source
    with Model(str(path), vocab_only=True) as model:
        its_own = own_counts(own, model.vocab.n_tokens)
        each = (1 - SHARE_OF_OWN - recipe.share_of_order) / len(counted)
        texts_alike = SHARE_OF_OWN * its_own / its_own.sum()
        for counts in counted.values():
            texts_alike = texts_alike + each * counts / counts.sum()
        together = texts_alike + recipe.share_of_order * order(model.vocab)
        built = build(np.rint(1e9 * together).astype(np.int64), model.vocab, size=recipe.size)
        built = replace(built, coverage=float(texts_alike[list(built.ids)].sum() / texts_alike.sum()))
        n_tokens = int(its_own.sum()) + sum(int(counts.sum()) for counts in counted.values())
        names = [*texts, "its own texts", *(["its vocabulary's order"] if recipe.share_of_order else [])]
        facts = header(model.vocab, model.metadata["general.name"], corpus=names, n_tokens=n_tokens, built=built)
        write_list(output / f"{name}.txt", built.ids, facts)
    print(f"{name}: {len(built.ids):,} tokens cover {built.coverage:.2%} of the texts")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(LISTS), help=f"of: {', '.join(LISTS)}")
    parser.add_argument("--size", type=int, help="tokens of a list (default: by model)")
    parser.add_argument("--texts", type=int, default=N_OWN, help=f"texts a model writes (default: {N_OWN})")
    parser.add_argument("--output", type=Path, default=DATA, help="folder of the lists")
    args = parser.parse_args()
    for name in args.models.split(","):
        recipe = LISTS[name]
        make(name, replace(recipe, size=args.size or recipe.size), args.texts, args.output)


if __name__ == "__main__":
    main()
