"""What a fetch tells its caller while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["licence", "wait", "download", "join", "quantize"]


@dataclass(frozen=True)
class FetchProgress:
    """One report about a fetch.

    Attributes:
        model: name of the model that is fetched or made (the source's name while the source is fetched).
        stage: ``"licence"`` (once, before anything is downloaded; ``detail`` is the text to show), ``"wait"``
            (another process is at it), ``"download"``, ``"join"`` (pieces are joined and checked),
            ``"quantize"``.
        done, total: bytes; ``total`` is 0 where there is nothing to count.
        detail: what is worked on, for people.
    """

    model: str
    stage: Stage
    done: int = 0
    total: int = 0
    detail: str = ""


Progress = Callable[[FetchProgress], None]
