class CompiledSpeculator:
    """A speculator in compiled code.

    Attributes:
        name: under which its drafts appear in results and statistics.
        n_max: longest draft it submits.
        n_min: shortest draft it submits; shorter ones are discarded and counted.
    """

    @property
    def name(self) -> str: ...
    @property
    def n_max(self) -> int: ...
    @property
    def n_min(self) -> int: ...
    def save(self, seq: int) -> bytes | None:
        """What it keeps of a sequence, as bytes for `load`, or None."""
    def load(self, seq: int, state: bytes, n_tokens: int) -> None:
        """Takes back what `save` gave, for a sequence of so many tokens."""
    def counts(self) -> dict[str, int]:
        """Work and time since construction, by name."""
