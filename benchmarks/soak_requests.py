"""The requests of `soak.py`: good ones, whose text is known from an engine that did nothing else, and bad ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspec import ContextFull, Engine, GrammarError, InvalidRequest, Result, SamplingParams
from pyspec.bench.kinds import prompts_for
from pyspec.bench.prompts import chatml
from pyspec.bench.prompts import prompts_for as ten_prompts

GRAMMARS = (
    'root ::= "yes" | "no" | "perhaps"',
    'root ::= item+\nitem ::= "- " [a-zA-Z ]+ "\\n"',
    'root ::= "{" pair ("," pair)* "}"\npair ::= "\\"" [a-z]+ "\\":" [0-9]+',
)
STOPS: tuple[tuple[str, ...], ...] = (("\n\n",), (".", "!"), ("the", "\n"), (" a",))


@dataclass(frozen=True)
class Known:
    """A request, and the result it had alone, without speculation.

    Attributes:
        number: which one.
        prompt: its token ids.
    """

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    alone: Result


def known_requests(engine: Engine, rng: random.Random, n: int) -> Iterator[Known]:
    """So many requests of all lengths and kinds, with what the engine answers to them.

    Args:
        engine: one without speculation, and with nothing else to do.
    """
    texts = [chatml(prompt.request) for prompt in prompts_for()] + ten_prompts(True) + ten_prompts(False)
    for number in range(n):
        prompt = tuple(engine.tokenize(texts[number % len(texts)]))
        params = random_params(rng, number)
        yield Known(number, prompt, params, engine.generate(prompt, params))


def random_params(rng: random.Random, number: int) -> SamplingParams:
    """Parameters whose text is a function of the prompt: greedy, or with a seed."""
    values: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 8, 24, 48, 96, 160]), "temperature": 0.0}
    if rng.random() < 0.3:
        values |= {"temperature": rng.choice([0.5, 0.8, 1.2]), "seed": number}
        if rng.random() < 0.3:
            values |= {"penalty_repeat": 1.1}
    what = rng.random()
    if what < 0.2:
        values["stop"] = rng.choice(STOPS)
    elif what < 0.35:
        values["grammar"] = rng.choice(GRAMMARS)
    elif what < 0.5:
        values["ignore_eos"] = True
    if rng.random() < 0.1:
        values["logprobs"] = 2
    return SamplingParams(**values)


@dataclass(frozen=True)
class Bad:
    """A request that has to be refused.

    Attributes:
        name: what is wrong with it.
        send: sends it.
        errors: what may come of it.
    """

    name: str
    send: Callable[[Engine], Any]
    errors: tuple[type[BaseException], ...]


def bad_requests(too_long: Sequence[int]) -> list[Bad]:
    """One of each sort. `too_long` are more tokens than a request may have."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4)

    def sort(name: str, error: type[BaseException], prompt: Any = "Hello", params: Any = greedy, **options: Any) -> Bad:
        return Bad(name, lambda engine: engine.generate(prompt, params, **options), (error,))

    def refused(name: str, error: type[BaseException], **values: Any) -> Bad:
        return Bad(name, lambda engine: engine.generate("Hello", SamplingParams(**values)), (error,))

    return [
        sort("no prompt", InvalidRequest, None),
        sort("a number for a prompt", InvalidRequest, 17),
        sort("an empty prompt", InvalidRequest, ""),
        sort("no Unicode", InvalidRequest, b"\xff\xfe"),
        sort("an unknown token", InvalidRequest, [1, 2, 1 << 40]),
        sort("a float for a token", InvalidRequest, [1, 2.5]),
        sort("a dictionary for parameters", InvalidRequest, params={"temperature": 0.0}),
        sort("a negative draft length", InvalidRequest, n_draft_max=-1),
        sort("a word for a priority", InvalidRequest, priority="high"),
        sort("time that runs backwards", InvalidRequest, timeout=-1.0),
        sort("no function", InvalidRequest, prompt_progress="print"),
        sort("too long", ContextFull, list(too_long)),
        sort("an unparsable grammar", GrammarError, params=greedy.replace(grammar='root ::= ("a" ')),
        sort("a grammar without a root", GrammarError, params=greedy.replace(grammar='word ::= "a"')),
        sort("a rule that is missing", GrammarError, params=greedy.replace(grammar="root ::= word")),
        refused("no tokens wanted", InvalidRequest, max_tokens=0),
        refused("not a number", InvalidRequest, temperature=float("nan")),
        refused("a word for a number", InvalidRequest, top_p="high"),
        refused("a seed that is too large", InvalidRequest, seed=1 << 40),
        refused("an empty stop string", InvalidRequest, stop=[""]),
    ]
