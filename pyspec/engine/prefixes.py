"""Where a request starts: from the longest beginning of its prompt that a slot, or the cache, still holds."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspec.errors import StateError

if TYPE_CHECKING:
    from pyspec._decoder import Decoder

_log = logging.getLogger("pyspec.engine")

# A shorter beginning than this is read again rather than saved, or fetched from the cache.
WORTH_SAVING = 32


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    a, b = tuple(a), tuple(b)
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def usable_prefix(held: Sequence[int], prompt: Sequence[int], can_rewind: bool) -> int:
    """How many of the tokens that are held a prompt can go on from. Its last token is always read, for its logits."""
    n = min(common_prefix(held, prompt), len(prompt) - 1)
    return n if can_rewind or n == len(held) else 0


@dataclass(frozen=True)
class Saved:
    """A sequence as it was saved.

    Attributes:
        tokens: what it holds.
        furthest: the furthest position its memory had reached, with sliding windows the limit of going back.
        target: the target's state.
        speculators: what each compiled speculator keeps of it, where it keeps anything.
    """

    tokens: tuple[int, ...]
    furthest: int
    target: bytes
    speculators: tuple[bytes | None, ...] = ()

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return len(self.target) + sum(len(state) for state in self.speculators if state) + 8 * len(self.tokens)


class PrefixCache:
    """Saved sequences in host memory, the least recently used leave first.

    Args:
        limit: bytes it may take; 0: nothing is kept.

    Attributes:
        size: bytes it takes.
        hits, misses: requests that found something longer here than in their slot, and those that did not.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[tuple[int, ...], Saved] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, saved: Saved) -> bool:
        """Keeps a sequence; what it begins with need not be kept by itself. False: it is too large."""
        if saved.size > self.limit:
            return False
        for tokens in [t for t in self._entries if t == saved.tokens[: len(t)]]:
            self._drop(tokens)
        self._entries[saved.tokens] = saved
        self.size += saved.size
        while self.size > self.limit:
            self._drop(next(iter(self._entries)))
        return True

    def best(self, prompt: Sequence[int], can_rewind: Callable[[int], bool]) -> tuple[Saved | None, int]:
        """The entry with the longest usable beginning of the prompt, and how many tokens that is.

        Args:
            can_rewind: whether a part of an entry is of use, by the furthest position it had reached.
        """
        found: Saved | None = None
        longest = 0
        for tokens, saved in self._entries.items():
            n = usable_prefix(tokens, prompt, can_rewind(saved.furthest))
            if n > longest:
                found, longest = saved, n
        if found is not None:
            self._entries.move_to_end(found.tokens)
        return found, longest

    def covers(self, tokens: Sequence[int]) -> bool:
        """Whether an entry begins with these tokens."""
        key = tuple(tokens)
        return any(t[: len(key)] == key for t in self._entries)

    def drop(self, saved: Saved) -> None:
        """Forgets an entry."""
        if self._entries.get(saved.tokens) is saved:
            self._drop(saved.tokens)

    def _drop(self, tokens: tuple[int, ...]) -> None:
        self.size -= self._entries.pop(tokens).size


class Slots:
    """The engine's sequences: which are free, what the free ones hold, and where a prompt can go on from.

    Args:
        decoder: whose sequences they are.
        reuse: start requests from what is held; off: every request reads its whole prompt.
        rewind: a part of what is held is of use as well; off: only all of it, as in the next turn of a conversation.
        cache: where sequences go whose slot somebody else gets.
    """

    def __init__(self, decoder: Decoder, n_slots: int, *, reuse: bool, rewind: bool, cache: PrefixCache) -> None:
        self.cache = cache
        self._decoder = decoder
        self._reuse = reuse
        self._rewind = rewind
        self._n_slots = n_slots
        self._free = list(range(n_slots))  # the least recently used first

    @property
    def n_free(self) -> int:
        return len(self._free)

    def take(self, prompt: Sequence[int]) -> tuple[int, int]:
        """A free slot for a prompt, holding the longest beginning of it that can be had.

        Where none holds a beginning worth having, it is a neighbour of those that are taken: rows of neighbours are
        computed together. Among neighbours it is the one with the least to lose.

        Returns:
            (slot, how many of the prompt's tokens it holds).
        """
        if not self._reuse:
            slot = min(self._free, key=self._n_gaps)
            self._free.remove(slot)
            self._decoder.end(slot)
            return slot, 0
        held = {slot: self._decoder.held(slot) for slot in self._free}
        usable = {
            slot: usable_prefix(tokens, prompt, self._can_rewind(self._decoder.furthest(slot)))
            for slot, tokens in held.items()
        }
        worth = {slot: n if n >= WORTH_SAVING else 0 for slot, n in usable.items()}
        slot = min(self._free, key=lambda s: (-worth[s], self._n_gaps(s), -usable[s], len(held[s])))
        self._free.remove(slot)
        saved, n_saved = self.cache.best(prompt, self._can_rewind)
        keep = usable[slot]
        fetch = saved is not None and n_saved >= keep + WORTH_SAVING
        self.cache.hits += fetch
        self.cache.misses += not fetch
        if (fetch or 2 * keep < len(held[slot])) and len(held[slot]) >= WORTH_SAVING:
            self.save(slot)
        if fetch and saved is not None:
            keep = n_saved if self._load(slot, saved) else 0
        return slot, self._decoder.retain(slot, keep)

    def _n_gaps(self, slot: int) -> int:
        """Pieces the taken slots fall into, if this one is taken as well."""
        taken = [s == slot or s not in self._free for s in range(self._n_slots)]
        return sum(its and not before for before, its in zip([False, *taken], taken, strict=False))

    def give_back(self, slot: int, *, keep: bool) -> None:
        """A request has left its slot; what it wrote stays for one that goes on from there."""
        if keep and self._reuse:
            self._decoder.release(slot)
        else:
            self._decoder.end(slot)
        self._free.append(slot)

    def empty(self) -> bool:
        """Frees the cells of all free slots. False: there were none."""
        holding = [slot for slot in self._free if self._decoder.held(slot)]
        for slot in holding:
            self._decoder.end(slot)
        return bool(holding)

    def save(self, slot: int) -> None:
        """Copies what a slot holds into the cache, unless it is there."""
        tokens = self._decoder.held(slot)
        if self.cache.limit == 0 or self.cache.covers(tokens):
            return
        self.cache.add(self.saved(slot))

    def saved(self, slot: int) -> Saved:
        """What a slot holds."""
        tokens, furthest, target, speculators = self._decoder.save(slot)
        return Saved(tuple(tokens), furthest, target, tuple(speculators))

    def _can_rewind(self, furthest: int) -> bool:
        return self._rewind and self._decoder.can_rewind(furthest)

    def _load(self, slot: int, saved: Saved) -> bool:
        """Fills a slot from the cache. False: the entry does not fit these contexts; it is dropped."""
        try:
            self._decoder.load(slot, saved.tokens, saved.furthest, saved.target, saved.speculators)
        except StateError as error:
            _log.warning("a saved prefix of %d tokens can't be used, and is read again: %s", len(saved.tokens), error)
            self.cache.drop(saved)
            return False
        return True
