"""Counting a corpus's tokens, on all processors."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyspec._llama import Model, Vocab
from pyspec.errors import PyspecError
from pyspec.machine import default_threads
from pyspec.vocab_lists.corpus import PIECE, Source, pieces

# Pieces under way for each process; more would only take memory.
AHEAD = 3

# Characters that are tokenized together. libllama looks for each of a vocabulary's user-defined tokens (Gemma has
# thousands) from every place where it has found one to the end of the text, which takes the square of its length.
TOGETHER = 4096

Numbers = npt.NDArray[np.int64]


@dataclass
class Counts:
    """How often each token occurs.

    Attributes:
        by_token: int64, one for each token of the vocabulary.
        by_source: the same for each file, by its path, where that was asked for.
        n_characters: of all texts.
    """

    by_token: Numbers
    by_source: dict[str, Numbers] = field(default_factory=dict)
    n_characters: int = 0

    @property
    def total(self) -> int:
        """Tokens of the corpus."""
        return int(self.by_token.sum())


def count(
    model: str,
    sources: Iterable[Source],
    *,
    n_processes: int | None = None,
    by_source: bool = False,
    progress: Callable[[int], None] = lambda n_characters: None,
) -> Counts:
    """Counts the tokens of texts, those in the middle of them: no beginning of a text is marked.

    Memory does not grow with the texts: a few pieces of them are there at a time.

    Args:
        model: GGUF file with the vocabulary.
        sources: the files.
        n_processes: processes that tokenize; None: one per core.
        by_source: keep counts for each file as well.
        progress: called with the characters that were counted so far.

    Raises:
        ModelLoadError: the model can't be loaded.
        InvalidRequest: a file can't be used, see `corpus.pieces`.
        PyspecError: a process ended.
    """
    with Model(model, vocab_only=True) as opened:
        counts = Counts(np.zeros(opened.vocab.n_tokens, np.int64))
        n_processes = default_threads() if n_processes is None else n_processes
        texts = ((source.path, text) for source in sources for text in pieces(source))
        counted = _here(opened.vocab, texts) if n_processes < 2 else _elsewhere(model, texts, n_processes)
        for path, n_characters, (ids, numbers) in counted:
            counts.by_token[ids] += numbers
            counts.n_characters += n_characters
            if by_source:
                counts.by_source.setdefault(path, np.zeros_like(counts.by_token))[ids] += numbers
            progress(counts.n_characters)
        return counts


Found = tuple[npt.NDArray[np.int64], Numbers]  # ids, how often each
Text = tuple[str, str]  # path, text


def tally(vocab: Vocab, text: str) -> Found:
    """The tokens of a text, and how often each occurs. Tokens across the cuts of a long text count as their parts."""
    tokens = [token for part in parts(text) for token in vocab.tokenize(part, add_special=False)]
    numbers = np.bincount(np.asarray(tokens, np.int64))
    (ids,) = np.nonzero(numbers)
    return ids, numbers[ids]


def parts(text: str, size: int = TOGETHER) -> Iterator[str]:
    """A text in parts of up to `size` characters, cut behind lines, else before spaces, else anywhere."""
    at = 0
    while len(text) - at > size:
        end = text.rfind("\n", at, at + size) + 1
        if end == 0:
            space = text.rfind(" ", at + 1, at + size)
            end = space if space > 0 else at + size
        yield text[at:end]
        at = end
    yield text[at:]


def _here(vocab: Vocab, texts: Iterable[Text]) -> Iterator[tuple[str, int, Found]]:
    for path, text in texts:
        yield path, len(text), tally(vocab, text)


def _elsewhere(model: str, texts: Iterable[Text], n_processes: int) -> Iterator[tuple[str, int, Found]]:
    waiting: deque[tuple[str, int, Future[Found]]] = deque()
    # Started anew rather than forked: libllama's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, _open_vocabulary, (model,)) as pool:
        try:
            for path, text in texts:
                waiting.append((path, len(text), pool.submit(_tally, text)))
                if len(waiting) >= AHEAD * n_processes:
                    path, n_characters, future = waiting.popleft()
                    yield path, n_characters, future.result()
            while waiting:
                path, n_characters, future = waiting.popleft()
                yield path, n_characters, future.result()
        except BrokenProcessPool as error:
            raise PyspecError(
                f"a process that counts tokens has ended (pieces of {PIECE >> 20} Mi characters; out of memory?)"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_model: Model | None = None  # of a process of the pool


def _open_vocabulary(path: str) -> None:
    global _model
    _model = Model(path, vocab_only=True)


def _tally(text: str) -> Found:
    assert _model is not None
    return tally(_model.vocab, text)
