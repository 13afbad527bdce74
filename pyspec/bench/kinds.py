"""Prompts by kind: what is to be written decides how much speculation can win.

A repetition and an edited copy are in the prompt already, so that n-grams find them; code is more regular than prose;
a translation has nothing to copy from. Three prompts of each kind, as requests to an instruction-tuned model and as
openings that a base model goes on with. They are in ``data/``, one file a kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pyspec import chat
from pyspec.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspec._llama import Model

KINDS = ("repetition", "code-edit", "code", "prose", "chat", "translation")

_MARK = "=== "


@dataclass(frozen=True)
class Prompt:
    """A prompt in its two forms.

    Attributes:
        request: what a user would write to an assistant.
        opening: the beginning of a text of the same kind, for a model that only goes on with texts.
    """

    kind: str
    request: str
    opening: str

    def text(self, model: Model, *, as_chat: bool) -> str:
        """What the model is given: the request in its chat template, or the opening.

        Raises:
            UnsupportedModel: it has no chat template, or one that can't be rendered.
        """
        if not as_chat:
            return self.opening
        return chat.render(model, [{"role": "user", "content": self.request}])


@cache
def prompts_of(kind: str) -> tuple[Prompt, ...]:
    """The prompts of a kind.

    Raises:
        InvalidRequest: there is no such kind.
    """
    if kind not in KINDS:
        raise InvalidRequest(
            f"there is no kind of prompt {kind!r}; there are {', '.join(KINDS)}", name="kinds", value=kind
        )
    text = (files("pyspec.bench") / "data" / f"{kind}.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in ("\n" + text).split("\n" + _MARK)[1:]]
    texts: dict[str, list[str]] = {"request": [], "opening": []}
    for name, _, body in parts:
        texts[name].append(body.removesuffix("\n"))
    return tuple(Prompt(kind, *pair) for pair in zip(texts["request"], texts["opening"], strict=True))


def prompts_for(kinds: Iterable[str] = KINDS, n: int | None = None) -> list[Prompt]:
    """The prompts of these kinds, in order; the first n of each, or all."""
    return [prompt for kind in kinds for prompt in prompts_of(kind)[:n]]
