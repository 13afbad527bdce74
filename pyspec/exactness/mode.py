"""Exact mode: which settings, and how wide a decode, so that speculation changes not a bit of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspec._llama import Model
from pyspec.errors import InvalidRequest
from pyspec.exactness.invariance import RowInvariance
from pyspec.exactness.probe import Progress
from pyspec.exactness.store import measured

# Parameters of a context that decide which kernels compute a row.
CONTEXT_SETTINGS = ("n_ubatch", "n_threads", "n_threads_batch", "flash_attn", "type_k", "type_v")

# Decodes up to so many rows are looked at: beyond them nothing more is to be gained.
PROVEN_ROWS = 33

# Tokens of context behind which nothing new is expected, but for sliding windows.
DEEPEST = 1024

# How a model could be loaded differently: called with use_extra_bufts.
Reload = Callable[[bool], Model]


@dataclass(frozen=True)
class Exact:
    """How strict an exact engine is.

    Attributes:
        fallback: where not even two rows are exact: "plain": decode without speculation, and say so; "raise": refuse.
        settings: "choose": change flash attention, the type of the V cache or the repacking of weights where that
            makes wider decodes exact; "keep": leave them as they are.
        check_every: after so many rounds with a draft, a row is decoded again alone and compared; 0: never.
    """

    fallback: Literal["plain", "raise"] = "plain"
    settings: Literal["choose", "keep"] = "choose"
    check_every: int = 64

    def __post_init__(self) -> None:
        for name, known in (("fallback", ("plain", "raise")), ("settings", ("choose", "keep"))):
            if getattr(self, name) not in known:
                raise InvalidRequest(
                    f"{name} must be {' or '.join(map(repr, known))}, not {getattr(self, name)!r}",
                    name=name,
                    value=getattr(self, name),
                )
        if isinstance(self.check_every, bool) or not isinstance(self.check_every, int) or self.check_every < 0:
            raise InvalidRequest(
                f"check_every must be an integer from 0 on, not {self.check_every!r}",
                name="check_every",
                value=self.check_every,
            )


def read_exact(value: bool | Exact) -> Exact | None:
    """What the parameter `exact` of an engine stands for; None: off.

    Raises:
        InvalidRequest: it is something else.
    """
    if isinstance(value, Exact):
        return value
    if not isinstance(value, bool):
        raise InvalidRequest(f"exact must be True, False or an Exact, not {value!r}", name="exact", value=value)
    return Exact() if value else None


@dataclass(frozen=True)
class Chosen:
    """What an exact engine does.

    Attributes:
        width: most rows of a decode that gives tokens; 1: no speculation.
        least_rows: fewest rows of a sequence in it; 2: a row that would be alone gets company, which is thrown away.
        prompt_width: tokens of a prompt that may be read at once so that the memory is as if they were read singly.
        changed: settings that are other than was asked for.
        found: what that rests on.
    """

    width: int
    least_rows: int
    prompt_width: int
    found: RowInvariance
    changed: dict[str, Any] = field(default_factory=dict)


def choose(
    model: Model,
    exact: Exact,
    *,
    n_slots: int,
    n_ctx: int,
    prompt_rows: int,
    settings: dict[str, Any],
    reload: Reload | None,
    progress: Progress | None = None,
) -> tuple[Model, Chosen]:
    """Measures, and chooses the first settings with which decodes of `PROVEN_ROWS` are exact, or the best there are.

    Which ones depends on nothing that may differ between two engines whose texts are to be the same: not on who
    drafts, nor on how many requests run at once.

    Args:
        model: loaded as the settings say.
        n_slots: sequences that share a decode.
        n_ctx: tokens a sequence may have.
        prompt_rows: tokens of a prompt that are read at once.
        settings: of context and model, as they were asked for.
        reload: loads the model with or without repacked weights, and closes the one before; None: it has to stay as it
            is.

    Returns:
        The model as it is to be used, and what was chosen. Width 1 means that nothing is exact.
    """
    n_ctx = min(n_ctx, DEEPEST + model.n_swa)
    tried: list[Chosen] = []

    def measure(changed: dict[str, Any], rows: int, prompt: int = 0, slots: int = 1) -> RowInvariance:
        context = {name: {**settings, **changed}[name] for name in CONTEXT_SETTINGS}
        return measured(
            model,
            n_rows=rows,
            n_slots=slots,
            n_ctx=n_ctx,
            prompt_rows=prompt,
            all_widths=False,
            only_together=slots > 1,
            progress=progress,
            **context,
        )

    def with_weights(changed: dict[str, Any]) -> Model:
        wanted = changed.get("use_extra_bufts", settings["use_extra_bufts"])
        if reload is not None and model.load_params["use_extra_bufts"] != wanted:
            return reload(wanted)
        return model

    for changed in _candidates(exact, settings, reload is not None):
        if "use_extra_bufts" in changed and any(chosen.width == chosen.found.limit for chosen in tried):
            break  # with company everything is exact: not worth loading the model again
        model = with_weights(changed)
        if changed and measure(changed, 2).width < 2:  # a look, before all widths are tried
            continue
        found = measure(changed, PROVEN_ROWS, prompt_rows)
        tried.append(_as_chosen(found, changed, model))
        if found.width == found.limit:
            break
    best = max(tried, key=lambda chosen: (chosen.width, chosen.least_rows == 1))
    model = with_weights(best.changed)
    if n_slots > 1 and best.width > 1:
        together = measure(best.changed, max(best.width, 2), slots=n_slots)
        width = together.width if best.least_rows == 1 else together.paired_width
        best = replace(best, width=max(width, best.least_rows), found=together)
    return model, best


def _candidates(exact: Exact, settings: dict[str, Any], can_reload: bool) -> Iterator[dict[str, Any]]:
    """Settings to try, what costs least first."""
    yield {}
    if exact.settings == "keep":
        return
    one_kernel: dict[str, Any] = {}
    if settings["flash_attn"] != "off" and settings["type_k"] == settings["type_v"] == "f16":
        # ggml's CPU backend has other kernels for a single row and for many, where K and V have one type.
        one_kernel = {"type_v": "bf16"}
        yield one_kernel
    if settings["flash_attn"] == "auto" and settings["type_v"] in ("f32", "f16", "bf16"):
        yield {"flash_attn": "off"}
    if settings["use_extra_bufts"] and can_reload:
        yield {"use_extra_bufts": False}
        if one_kernel:
            yield {"use_extra_bufts": False, **one_kernel}


def _as_chosen(found: RowInvariance, changed: dict[str, Any], model: Model) -> Chosen:
    """How a model is used of which this is known."""
    cuttable = not (model.is_recurrent or model.is_hybrid)  # else a row that is thrown away costs a checkpoint
    if found.width == 1 and found.paired_width > 2 and cuttable:
        return Chosen(found.paired_width, 2, 1, found, changed)
    return Chosen(found.width, 1, found.prompt_width, found, changed)


def explain(chosen: Chosen) -> str:
    """What an exact engine does, and why, in words."""
    parts = []
    if chosen.width == 1:
        first = chosen.found.first_difference()
        by = "" if first is None else f" (logits differ by up to {first.largest:.3g} from {first.rows[0]} rows on)"
        parts.append(f"no two rows of a decode are what they are alone{by}; nothing is drafted")
    else:
        more = " or more" if chosen.width == chosen.found.limit else ""
        parts.append(f"decodes of up to {chosen.width} rows{more} are exact")
    if chosen.least_rows > 1:
        parts.append(
            f"if each sequence has {chosen.least_rows} or more: a row that would be alone gets company, "
            "which is thrown away"
        )
    if chosen.changed:
        parts.append("with " + ", ".join(f"{name}={value!r}" for name, value in chosen.changed.items()))
    return ", ".join(parts)
