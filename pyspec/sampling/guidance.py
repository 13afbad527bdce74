"""JSON Schemas, and grammars in llguidance's Lark format: what they allow at each place of a text.

llguidance (the extra ``json``) compiles a grammar for a vocabulary and says at any place which tokens may follow. It
writes what a grammar leaves no choice about in the tokenizer's own tokens: where the next bytes are certain, the mask
holds the one token the tokenizer would begin them with.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyspec.errors import GrammarError, UnsupportedModel
from pyspec.sampling.checks import shown

if TYPE_CHECKING:
    import llguidance

    from pyspec._llama import Vocab

# Between the parts of a JSON text, unless the schema says what may be there. llguidance's own default has no end, and
# small models write spaces for ever.
_JSON_DEFAULTS: Any = {"whitespace_pattern": r"[ ]|\n{1,2}[ \t]{0,20}"}
_RULES_FOR_SPACE = frozenset({"whitespace_pattern", "whitespace_flexible"})

_JSON_SPACE = b" \t\r\n"

_DEAD_END = "no token of the vocabulary fits the grammar here"

# A control character that no tokenizer merges with anything.
_MARK = b"\x02"


def import_llguidance(needed_by: str) -> Any:
    """The package, or GrammarError naming the extra that brings it."""
    try:
        import llguidance
    except ImportError:
        raise GrammarError(
            f"{needed_by} needs the package llguidance: pip install 'pyspec[json]'", name=needed_by
        ) from None
    return llguidance


class Tokenizer:
    """A vocabulary as llguidance wants to see it: one that can write every text.

    Some lack a byte that no text they were made from had (0xf1 in SmolLM2's). Such a byte gets a token behind the last
    one, which nothing ever chooses: where only that fits, no token does.

    Attributes:
        tokens: the bytes of each token, those of missing bytes at the end.
        n_tokens: how many of them the vocabulary has.
    """

    def __init__(self, vocab: Vocab) -> None:
        ids = range(vocab.n_tokens)
        self._vocab = vocab
        self.n_tokens = vocab.n_tokens
        self.tokens = [vocab.piece(token) for token in ids]
        self.special_token_ids = [token for token in ids if not vocab.piece(token, special=False)]
        self.eos_token_id = vocab.eog_tokens[0]
        self.bos_token_id = vocab.bos
        special = set(self.special_token_ids)
        self._by_bytes = {piece: token for token, piece in enumerate(self.tokens) if piece and token not in special}
        missing = [byte for byte in (bytes([i]) for i in range(256)) if byte not in self._by_bytes]
        self._by_bytes.update(zip(missing, range(self.n_tokens, self.n_tokens + len(missing)), strict=True))
        self.tokens += missing

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a text in the middle of another; their bytes are the text's, whatever the tokenizer does."""
        text = text.encode() if isinstance(text, str) else text
        try:
            tokens = self._vocab.tokenize(text, add_special=False)
            if self._bytes(tokens) == text:
                return tokens
            # SentencePiece puts a space before a text; something before that keeps it away from here.
            marked = self._vocab.tokenize(_MARK + text, add_special=False)
            for n in range(1, len(marked)):
                if self._bytes(marked[:n]).endswith(_MARK) and self._bytes(marked[n:]) == text:
                    return marked[n:]
        except Exception:  # llguidance takes no exception from here: it ends the thread
            pass
        return self._longest_first(text)

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.tokens[token] for token in tokens)

    def _longest_first(self, text: bytes) -> list[int]:
        longest = max(map(len, self._by_bytes))
        tokens = []
        at = 0
        while at < len(text):
            end = next(end for end in range(min(len(text), at + longest), at, -1) if text[at:end] in self._by_bytes)
            tokens.append(self._by_bytes[text[at:end]])
            at = end
        return tokens


class GuidedConstraint:
    """A text that follows one of llguidance's grammars.

    Attributes:
        masker: the grammars of its vocabulary.
        error: why nothing can follow any more, or None.
    """

    def __init__(self, masker: Grammars, grammar: str, matcher: llguidance.LLMatcher) -> None:
        self.masker = masker
        self.error: str | None = None
        self.matcher = matcher
        self._grammar = grammar
        self._tokens: list[int] = []

    def fitting(self, draft: Sequence[int]) -> int:
        """How many of the first tokens of a draft the grammar lets through."""
        return 0 if self.error is not None else int(self.matcher.validate_tokens(list(draft)))

    def forced(self, n_max: int) -> list[int]:
        """The tokens of the bytes that have to come next, as far as they are certain."""
        if self.error is not None:
            return []
        n_tokens = self.masker.tokenizer.n_tokens
        return list(itertools.takewhile(lambda token: token < n_tokens, self.matcher.compute_ff_tokens()))[:n_max]

    def accept(self, tokens: Sequence[int]) -> GuidedConstraint:
        """Takes in what was emitted."""
        added = [token for token in tokens if token not in self.masker.eog]
        self._tokens += added
        if self.error is None and added and not self.matcher.consume_tokens(added):
            self.fail()
        return self

    def start_with(self, text: bytes) -> None:
        """Takes in a text that is there before the first token.

        Raises:
            GrammarError: it does not fit.
        """
        if text:
            self.accept(self.masker.tokenizer(text))
            if self.error is not None:
                raise GrammarError(f"{shown(text.decode('utf-8', 'replace'))} can't begin it", name="grammar")

    def recover(self) -> None:
        """Another matcher at the same place, after the old one ran into an error further on."""
        self.matcher = self.masker.compile(self._grammar)
        if self._tokens and not self.matcher.is_error():
            self.matcher.consume_tokens(self._tokens)

    def fail(self) -> None:
        """Keeps the matcher's error."""
        message = in_one_line(self.matcher.get_error())
        self.error = _DEAD_END if not message or "NoExtension" in message else message


class Grammars:
    """Grammars over one vocabulary: compiled once each, and the masks of the texts that follow them.

    Args:
        vocab: whose tokens; what they look like is taken in when the first grammar is needed, which takes 0.2 s for
            49,152 tokens and 1.4 s for 262,144.
        n_texts: how many may be followed at once: as many threads may work on masks, if there are processors.
        size: grammars that are kept.
    """

    def __init__(self, vocab: Vocab, *, n_texts: int = 1, size: int = 16) -> None:
        self.eog = frozenset(vocab.eog_tokens)
        self._vocab = vocab
        self._n_texts = n_texts
        self._size = size
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._tables: llguidance.LLTokenizer | None = None
        self._executor: llguidance.LLExecutor | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary, as llguidance sees it."""
        assert self._tokenizer is not None
        return self._tokenizer

    def for_schema(self, schema: str) -> GuidedConstraint:
        """A text that is JSON by this schema.

        Raises:
            GrammarError: the schema is none, says what llguidance can't follow, or llguidance is missing.
            UnsupportedModel: the vocabulary has no token that ends a text.
        """
        llguidance = import_llguidance("json_schema")
        options = json.loads(schema).get("x-guidance")
        own_rules = isinstance(options, dict) and not _RULES_FOR_SPACE.isdisjoint(options)
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                schema, defaults=None if own_rules else _JSON_DEFAULTS
            )
        except ValueError as error:
            raise GrammarError(f"json_schema: {error}", name="json_schema", value=schema) from None
        return self._constraint(grammar, "json_schema", schema)

    def for_lark(self, grammar: str) -> GuidedConstraint:
        """A text that follows a grammar in llguidance's Lark format.

        Raises:
            GrammarError: the grammar can't be compiled, or llguidance is missing.
            UnsupportedModel: the vocabulary has no token that ends a text.
        """
        import_llguidance("grammar")
        return self._constraint(grammar, "grammar", grammar)

    def _constraint(self, grammar: str, name: str, given: str) -> GuidedConstraint:
        self._prepare()
        with self._lock:
            matcher = self._compiled.pop(grammar, None)
        if matcher is None:
            matcher = self.compile(grammar)
            if matcher.is_error():
                why = in_one_line(matcher.get_error())
                raise GrammarError(f"{name} can't be used: {why}", name=name, value=given)
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > self._size:
                self._compiled.popitem(last=False)
        return GuidedConstraint(self, grammar, matcher.deep_copy())

    def compile(self, grammar: str) -> llguidance.LLMatcher:
        """A matcher at the beginning of a text, of a grammar that was never compiled before."""
        package = import_llguidance("json_schema")
        limits = package.LLParserLimits(verbose_errors=False)
        matcher: llguidance.LLMatcher = package.LLMatcher(self._tables, grammar, log_level=0, limits=limits)
        return matcher

    def _prepare(self) -> None:
        """Shows the vocabulary to llguidance, once."""
        with self._lock:
            if self._tables is not None:
                return
            if not self.eog:
                raise UnsupportedModel("the vocabulary has no token that ends a text, so no grammar could be finished")
            llguidance = import_llguidance("json_schema")
            self._tokenizer = Tokenizer(self._vocab)
            n_threads = max(1, min(self._n_texts, os.cpu_count() or 1))
            self._executor = llguidance.LLExecutor(n_threads)
            self._tables = llguidance.LLTokenizer(
                llguidance.TokenizerWrapper(self._tokenizer), eos_token=sorted(self.eog)
            )

    # -- masks ---------------------------------------------------------------------------------------------------

    def fill(self, asked: Sequence[tuple[Any, Sequence[int]]]) -> list[tuple[npt.NDArray[np.uint32], int]]:
        """For each constraint and draft: a mask for the row behind each token that fits, and how many fit.

        A constraint that can't go on gets a mask of nothing, and its `error` says why.
        """
        firsts: list[int] = []
        n_rows = 0
        for _, draft in asked:
            firsts.append(n_rows)
            n_rows += 1 + len(draft)
        rows = np.zeros((n_rows, (len(self.tokenizer.tokens) + 31) // 32), np.uint32)
        self._compute(rows, [(c, at, draft) for (c, draft), at in zip(asked, firsts, strict=True) if c.error is None])
        return [
            (rows[at : at + 1 + len(draft)], self._settle(constraint, rows, at, draft))
            for (constraint, draft), at in zip(asked, firsts, strict=True)
        ]

    def _compute(self, rows: npt.NDArray[np.uint32], asked: Sequence[tuple[Any, int, Sequence[int]]]) -> None:
        assert self._executor is not None
        n_bytes = rows.strides[0]
        single = [(constraint.matcher, at) for constraint, at, draft in asked if not draft]
        paths = [(constraint.matcher, at, list(draft)) for constraint, at, draft in asked if draft]
        if single:
            self._executor.unsafe_compute_mask_ptr(single, rows.ctypes.data, n_bytes, len(rows))
        if paths:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(paths, rows.ctypes.data, n_bytes, len(rows))
        # The tokens of bytes that the vocabulary lacks are in no text.
        n_tokens = self.tokenizer.n_tokens
        rows[:, (n_tokens + 31) // 32 :] = 0
        if n_tokens % 32:
            rows[:, n_tokens // 32] &= np.uint32((1 << n_tokens % 32) - 1)

    def _settle(self, constraint: Any, rows: npt.NDArray[np.uint32], at: int, draft: Sequence[int]) -> int:
        """How many tokens of the draft its masks allow. What went wrong on the way is looked at without the draft.

        A token behind which nothing fits is left to the target, so that a dead end looks the same with a draft.
        """
        if constraint.error is not None:
            return 0
        if constraint.matcher.is_error():
            # In the draft, where the text may never go: at the place the text has reached all may be well.
            constraint.recover()
            rows[at : at + 1 + len(draft)] = 0
            if not constraint.matcher.is_error():
                self._compute(rows, [(constraint, at, [])])
            if constraint.matcher.is_error():
                rows[at] = 0
                constraint.fail()
            return 0
        if not rows[at].any():
            constraint.error = _DEAD_END
            return 0
        for i, token in enumerate(draft):
            if not (int(rows[at + i, token >> 5]) >> (token & 31)) & 1 or not rows[at + i + 1].any():
                return i
        return len(draft)


def in_one_line(message: str) -> str:
    """An error of llguidance's without what it says of its inner state."""
    words = message.partition("<state>")[0].replace("<non-verbose/>", "").split()
    return " ".join(words)[:300]


def without_leading_space(text: bytes) -> bytes:
    """What JSON begins with; space before it means nothing."""
    return text.lstrip(_JSON_SPACE)
