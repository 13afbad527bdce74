"""grammar: what a grammar leaves no choice about is drafted for nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspec.speculation.config import check_integer, check_n_min

if TYPE_CHECKING:
    from pyspec._decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class GrammarDrafts:
    """grammar: proposes the tokens a request's grammar forces: keys of a JSON object, quotes and braces, what is left
    of the only word that fits.

    It drafts for requests with a ``json_schema``, or a grammar in llguidance's Lark format; a GBNF grammar can't say
    what it forces without trying the whole vocabulary. The fewer spaces a schema allows, the more is certain
    (``"x-guidance": {"whitespace_flexible": false}``). Put it first: what it proposes costs nothing and is accepted.

    Attributes:
        n_max: 1 or more, longest draft.
        n_min: 1 to n_max: shorter runs are left to the speculators behind it, which may have more to say.

    Raises:
        InvalidRequest: for a value outside its range.
    """

    kind: ClassVar[str] = "grammar"

    n_max: int = 16
    n_min: int = 1

    def __post_init__(self) -> None:
        check_integer(self.n_max, "n_max", 1)
        check_integer(self.n_min, "n_min", 1)
        check_n_min(self.n_min, self.n_max)

    def to_dict(self) -> dict[str, Any]:
        """All parameters by name; ``GrammarDrafts(**d)`` makes an equal one."""
        return asdict(self)


class ForcedTokens:
    """The speculator of a running engine.

    Attributes:
        name: under which its tokens appear in results and statistics.
    """

    name = GrammarDrafts.kind

    def __init__(self, config: GrammarDrafts) -> None:
        self._config = config

    def offer(self, decoder: Decoder, seqs: Iterable[int]) -> bool:
        """Drafts for sequences that have no draft yet. Returns whether there was anything to draft."""
        offered = False
        for seq in seqs:
            tokens = decoder.forced(seq)[: self._config.n_max]
            if len(tokens) >= self._config.n_min:
                decoder.offer(seq, tokens)
                offered = True
        return offered
