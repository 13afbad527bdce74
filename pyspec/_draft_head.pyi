from collections.abc import Sequence

from pyspec._llama import Context

class DraftHead:
    """The reduced output head of a draft model's context. Give it to the `DraftRunner` or `PairRunner` of the same one.

    Args:
        context: a draft model's, which nobody else uses; or several of one model, one for each NextN layer that drafts.
        ids: the tokens that can be drafted, each once.
        n_slots: so many of them, the last ones, may give way to tokens that turn up in a text. Where single rows can't
            be written there are none.
        max_miss: 0..1: the whole head drafts while more than this share of the last 64 tokens could not be drafted,
            for most of the drafting sequences.

    Raises:
        InvalidRequest: an id is there twice or not in the vocabulary; too many slots; or a list that is no reduction.
        UnsupportedModel: this model's head can't be reduced; the message says why.
    """

    @property
    def contexts(self) -> list[Context]: ...
    @property
    def context(self) -> Context:
        """The (first) context."""
    @property
    def max_miss(self) -> float: ...
    @property
    def whole_only(self) -> bool:
        """A row could not be written, so the whole head drafts from then on."""
    @property
    def n_rows(self) -> int:
        """Tokens that can be drafted."""
    @property
    def n_slots(self) -> int:
        """Of those, how many change with the texts."""
    @property
    def n_bytes(self) -> int:
        """Memory of the head."""
    @property
    def reduced(self) -> bool:
        """Whether the next draft uses the reduced head."""
    @property
    def closed(self) -> bool: ...
    def __init__(
        self,
        context: Context | Sequence[Context],
        ids: Sequence[int] | range,
        *,
        n_slots: int = 0,
        max_miss: float = 0.1,
    ) -> None: ...
    def ids(self) -> list[int]:
        """The tokens the rows stand for now, in order."""
    def miss_rate(self, seq: int) -> float:
        """Of the last tokens of a sequence, 64 at most, the share that could not be drafted when they came."""
    def counts(self) -> dict[str, int]:
        """What happened since construction."""
    def switch(self, reduced: bool) -> None:
        """Chooses the head for the next decode; a round chooses again."""
    def compare(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Decodes tokens with both heads, on an empty sequence 0, which is empty again afterwards.

        A draft that reads hidden states gets some numbers in their place, in each of its contexts.

        Returns:
            How many logits of listed tokens were compared, and how many of them differ in any bit.
        """
    def close(self) -> None:
        """Frees the head; the context drafts with the whole one again. What uses this object can't be used any more."""
