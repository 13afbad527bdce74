"""Drafting without a model; see _ngram.pyx."""

from collections.abc import Iterable, Sequence

from pyspec._speculator import CompiledSpeculator

class NGramRunner(CompiledSpeculator):
    """What the five have in common: it follows every sequence and lets the method propose."""

    def counts(self) -> dict[str, int]:
        """What it did since construction, each name behind the speculator's: "ngram-mod.drafts".

        proposals (times it was asked), drafts, drafted (tokens), discarded (tokens of drafts shorter than
        n_min), rebuilds (histories that had been cut or edited), failures (out of memory; the request goes
        on), propose_us, index_us (following the sequences, the prompts among it).
        """

class NGramSimpleRunner(NGramRunner):
    """ngram-simple: proposes what followed the last size_n tokens when they occurred before."""

    def __init__(self, n_seq: int, *, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None: ...

class NGramMapKRunner(NGramRunner):
    """ngram-map-k: as ngram-simple, and learns for each n-gram how long its drafts should be."""

    def __init__(self, n_seq: int, *, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None: ...

class NGramMapK4VRunner(NGramRunner):
    """ngram-map-k4v: counts up to four continuations (values) of each n-gram, proposes what most say."""

    def __init__(self, n_seq: int, *, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None: ...

class NGramModRunner(NGramRunner):
    """ngram-mod: a table from n_match tokens to the token that followed last, applied again and again."""

    @property
    def shared(self) -> bool: ...
    def __init__(
        self, n_seq: int, *, n_match: int = 24, n_max: int = 64, n_min: int = 48, shared: bool = False
    ) -> None: ...

class NGramCacheRunner(NGramRunner):
    """ngram-cache: proposes the token that has followed the last one to four tokens most often."""

    @property
    def lookup_static(self) -> LookupCache | None: ...
    @property
    def lookup_dynamic(self) -> LookupCache | None: ...
    @property
    def teach(self) -> bool: ...
    def __init__(
        self,
        n_seq: int,
        *,
        n_draft: int = 8,
        lookup_static: LookupCache | None = None,
        lookup_dynamic: LookupCache | None = None,
        teach: bool = False,
    ) -> None: ...

class LookupCache:
    """How often which token followed which n-gram of one to four tokens: what llama.cpp calls a lookup cache.

    `pyspec.speculation.lookup_file` reads and writes files of them. A corpus becomes one with `update`.
    """

    def __init__(self) -> None: ...
    def update(self, tokens: Iterable[int], *, low: int = 1, high: int = 4) -> None:
        """Counts all n-grams of a text.

        Args:
            tokens: its token ids.
            low, high: the shortest and the longest n-grams that are counted, 1..4. A static cache needs only
                those of two tokens.
        """

    def merge(self, other: LookupCache) -> None:
        """Adds another one's counts."""

    def __len__(self) -> int: ...
    def __getitem__(self, tokens: Sequence[int]) -> dict[int, int]:
        """What followed an n-gram: ``{token: count}``; KeyError if it never occurred."""

    def to_dict(self) -> dict[tuple[int, ...], dict[int, int]]:
        """All of it: ``{(token, ...): {token: count}}``."""

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview, n_vocab: int | None = None) -> LookupCache:
        """Reads llama.cpp's format.

        Args:
            data: the content of a file.
            n_vocab: size of the vocabulary it has to belong to; None: any.

        Raises:
            StateError: the data is damaged (it ends too early, an n-gram or successor is there twice, a count
                is not above 0) or has tokens that are not in the vocabulary. The message says at which byte.
        """

    def to_bytes(self) -> bytes:
        """In llama.cpp's format."""

class Rehearsal:
    """Drives a speculator as the decoder does, on token sequences that are known: no model is needed.

    For tests and measurements, and to see what it would have made of a recorded text.

    Args:
        speculator: it believes what happens here, so it must not be an engine's at the same time.
        n_seq: sequences there are; no more than it was made for.
    """

    @property
    def speculator(self) -> NGramRunner: ...
    def __init__(self, speculator: NGramRunner, n_seq: int = 1) -> None: ...
    def feed(self, tokens: Sequence[int], *, seq: int = 0, told: bool = True) -> None:
        """A sequence consists of these tokens now, the last of them its seed.

        With ``told=False`` the speculator is not informed and has to find out.
        """

    def propose(self, budget: int, *, seq: int = 0) -> list[int]:
        """Asks for a draft of at most `budget` tokens, as at the beginning of a round; returns it."""

    def n_discarded(self, *, seq: int = 0) -> int:
        """Tokens of the last proposal that were not submitted, for being too few."""

    def verify(
        self, continuation: Sequence[int], *, seq: int = 0, n_submitted: int | None = None, own: bool = True
    ) -> list[int]:
        """The rest of the round: the target says these tokens, for as long as they are the drafted ones and
        one more.

        Args:
            continuation: what comes next in truth, at least one token. If all of it was drafted, it is as if
                the last token had ended the text.
            n_submitted: the draft is cut to so many tokens before; None: all.
            own: the draft is the speculator's; False: somebody else's.

        Returns:
            The emitted tokens.
        """

    def drop(self, *, seq: int = 0) -> None:
        """The round came to nothing."""

    def forget(self, *, seq: int = 0) -> None:
        """The request is over."""

    def tokens(self, *, seq: int = 0) -> list[int]:
        """The sequence, the seed included."""

    def check(self, *, seq: int = 0) -> None:
        """AssertionError when what the speculator believes of the sequence can't be."""
