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
    def counts(self) -> dict[str, int]:
        """Work and time since construction, by name."""
