"""The text and the vocabulary of tiny-mtp, see mtp_train.py.

The text is this Python's own documentation, under the PSF licence: the reference topics of ``help()`` and the
docstrings of the standard library. Every twentieth document is held out.
"""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import gguf

HELD_OUT = 20  # one document in so many
SHORTEST = 80  # characters of a docstring
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "pydoc_data", "site-packages", "__pycache__", "turtledemo"}

# Ids of the tokens that are no pieces: <unk> <s> </s>, then the bytes.
UNK, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3
N_FIXED = FIRST_BYTE + 256

# What a piece may be made of: a word or a number with the space before it, punctuation, whitespace.
CHUNK = re.compile(r" ?[A-Za-z]+|_+[A-Za-z]*| ?[0-9]| ?[^\sA-Za-z0-9_]+|\n *|\s")


def documents(*, held_out: bool) -> list[str]:
    """The texts to train with, or those to test with; sorted, none twice."""
    texts = {text.strip("\n") + "\n" for text in (*topics.values(), *_docstrings())}
    return sorted(text for text in texts if (zlib.crc32(text.encode()) % HELD_OUT == 0) is held_out)


def _docstrings() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in library.rglob("*.py"):
        if LEFT_OUT.intersection(path.relative_to(library).parts):
            continue
        with warnings.catch_warnings():  # about escapes in other people's strings
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=False)
                if text is not None and len(text) >= SHORTEST:
                    yield inspect.cleandoc(text)


def pieces(texts: Sequence[str], n: int) -> list[str]:
    """The pieces of a vocabulary, in the order in which they are joined: byte pair encoding (Sennrich et al., "Neural
    Machine Translation of Rare Words with Subword Units", 2016), over the words of the texts."""
    words = Counter(chunk for text in texts for chunk in CHUNK.findall(text))
    found = ["\n", *(chr(c) for c in range(32, 127))]
    spelled = [[c for c in word if c in found] for word in words]
    counts = list(words.values())
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for i, word in enumerate(spelled):
        for pair in pairwise(word):
            pairs[pair] += counts[i]
            where[pair].add(i)
    while len(found) < n:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = "".join(best)
        if joined not in found:
            found.append(joined)
        for i in where.pop(best):
            word = spelled[i]
            for pair in pairwise(word):
                pairs[pair] -= counts[i]
            j = 0
            while j + 1 < len(word):
                if (word[j], word[j + 1]) == best:
                    word[j : j + 2] = [joined]
                j += 1
            for pair in pairwise(word):
                pairs[pair] += counts[i]
                where[pair].add(i)
        del pairs[best]
    return found


def add_vocabulary(file: gguf.GGUFWriter, found: Sequence[str]) -> None:
    """The vocabulary as SentencePiece spells it, in a model file."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    tokens += [piece.replace(" ", "\u2581") for piece in found]
    types += [gguf.TokenType.NORMAL] * len(found)
    file.add_tokenizer_model("llama")
    file.add_token_list(tokens)
    file.add_token_scores([-float(i) for i in range(len(tokens))])
    file.add_token_types(types)
    file.add_unk_token_id(UNK)
    file.add_bos_token_id(BOS)
    file.add_eos_token_id(EOS)
    file.add_add_bos_token(True)
    file.add_add_space_prefix(False)
