"""The public face: an engine holds a target model and whoever drafts for it, and writes text."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, NoReturn

from pyspec._llama import Model
from pyspec.engine.assembly import assemble, look_at_costs
from pyspec.engine.generation import Generation, Job, Result
from pyspec.engine.loading import LoadProgress
from pyspec.engine.prompt import prompt_tokens
from pyspec.engine.worker import Worker
from pyspec.errors import Closed, ContextError, ContextFull, InvalidRequest
from pyspec.sampling import DryCache, SamplingParams, build_chain
from pyspec.speculation.config import check_callback, check_integer
from pyspec.speculation.specs import Speculation, longest_draft, speculators_from
from pyspec.speculation.synthetic import Synthetic

SIZE_OF_LOGIT = 4  # bytes; libllama leaves the rows of logits out of its report

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_process: int | None = None  # in which libllama's threads were started


class Engine:
    """Writes text with a GGUF model, faster by speculative decoding, and the same text as without.

    >>> with Engine("target.gguf", speculation=DraftModel("draft.gguf", n_max=8)) as engine:
    ...     print(engine.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=100)).text)

    All methods may be called from any thread. Requests run one after the other, in the order they came, on a thread
    of the engine's own.

    Args:
        target: the model whose text is wanted: a GGUF file, a name that ``pyspec models list`` knows, or an open
            `Model`, which stays open when the engine is closed.
        draft_model: short for ``speculation=DraftModel(draft_model)``.
        speculation: who drafts. A `DraftModel`, an n-gram method (`NGramSimple`, `NGramMapK`, `NGramMapK4V`,
            `NGramMod`, `NGramCache`), any object with ``propose(requests)``, a function ``tokens -> draft``, or
            several of them in the order they are asked (the first that has a draft wins the round; at most one
            draft model). "auto": the draft model if one is given, else n-grams of the text itself, with lengths
            that pay (see draft_length). "none" or None: plain decoding.
        n_ctx: tokens the context holds, prompt and text together; None: as many as the model was trained with.
        n_batch: most rows in one decode; drafts shrink where it is smaller than a draft and one.
        n_ubatch: most rows computed at once: how a long prompt is cut. Larger is faster up to a point and takes
            memory for intermediate results.
        n_threads: threads for decodes of one row; 0: one per core.
        n_threads_batch: threads for prompts and verification; 0: as n_threads.
        n_gpu_layers: layers kept on the GPU, where there is one; -1: all.
        flash_attn: "auto", "on" or "off".
        type_k: type of the K cache: "f16", "f32", "bf16", "q8_0", "q4_0", ...; type_v likewise.
        type_v: quantized ones need flash attention. On the CPU "bf16" makes a row of logits independent of its batch
            beyond 256 tokens of context, too, where "f16" for K and V does not.
        use_extra_bufts: repack weights for the CPU's matrix kernels where that is faster; more memory, slower load.
        n_draft_max: longest draft verified; None: the longest n_max of the speculators. Rows of logits are
            reserved for it.
        draft_length: "fixed": drafts as long as their speculator's n_max (and p_min) say. "auto": as long as pays, from
            what decodes cost and what is accepted, measured while the engine runs; not at all where drafting does not
            pay. None: "auto" where speculation is "auto", else "fixed".
        synthetic: for benchmarks: acceptance is drawn at random, and the text is not the model's.
        load_progress: called with ("target" or "draft", 0..1) while models load; what it raises ends the loading.

    Raises:
        ModelLoadError: a file is missing or can't be loaded.
        VocabMismatch: the draft model has another vocabulary.
        UnsupportedModel: a model can't do what it is given for.
        InvalidRequest: a parameter is out of range, or two contradict each other.
        ContextError: libllama can't create a context like that, or not after a fork.
    """

    _worker: Worker | None = None  # until the constructor has succeeded

    def __init__(
        self,
        target: str | os.PathLike[str] | Model,
        *,
        draft_model: str | os.PathLike[str] | None = None,
        speculation: Speculation = "auto",
        n_ctx: int | None = 4096,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int = 0,
        n_threads_batch: int = 0,
        n_gpu_layers: int = -1,
        flash_attn: str = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        use_extra_bufts: bool = True,
        n_draft_max: int | None = None,
        draft_length: Literal["auto", "fixed"] | None = None,
        synthetic: Synthetic | None = None,
        load_progress: LoadProgress | None = None,
    ) -> None:
        check_callback(load_progress, "load_progress")
        specs = speculators_from(speculation, draft_model)
        for name, value, low in (
            ("n_batch", n_batch, 1),
            ("n_ubatch", n_ubatch, 1),
            ("n_threads", n_threads, 0),
            ("n_threads_batch", n_threads_batch, 0),
            ("n_gpu_layers", n_gpu_layers, -1),
        ):
            check_integer(value, name, low)
        if n_ctx is not None:
            check_integer(n_ctx, "n_ctx", 1)
        if n_draft_max is not None:
            check_integer(n_draft_max, "n_draft_max", 0)
        longest = max((longest_draft(spec) for spec in specs), default=0)
        if n_draft_max is not None:
            longest = min(longest, n_draft_max)
        if draft_length not in (None, "auto", "fixed"):
            raise InvalidRequest(
                f"draft_length must be 'auto' or 'fixed', not {draft_length!r}", name="draft_length", value=draft_length
            )
        _require_own_threads()
        adaptive = bool(specs) and (draft_length or ("auto" if speculation == "auto" else "fixed")) == "auto"

        assembly = assemble(
            target,
            specs,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_draft_max=longest,
            implied=draft_model is None and isinstance(speculation, str),
            adaptive=adaptive,
            synthetic=synthetic,
            settings={
                "n_ubatch": n_ubatch,
                "n_threads": n_threads,
                "n_threads_batch": n_threads_batch,
                "n_gpu_layers": n_gpu_layers,
                "flash_attn": flash_attn,
                "type_k": type_k,
                "type_v": type_v,
                "use_extra_bufts": use_extra_bufts,
            },
            progress=load_progress,
        )
        self.config = assembly.config
        self._model = assembly.model
        self._contexts = assembly.contexts
        self._dry_cache = DryCache()
        self._worker = Worker(assembly.setup, assembly.contexts, assembly.release)
        _open_engines.add(self)
        try:
            self._worker.ask(lambda: look_at_costs(assembly))
        except BaseException:
            self.close()
            raise

    # -- requests ------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | bytes | Sequence[int],
        params: SamplingParams | None = None,
        *,
        n_draft_max: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Writes the continuation of a prompt and returns it whole.

        Args:
            prompt: text (a BOS token is put in front where the model wants one, and special tokens written out in
                it are recognised), UTF-8 bytes, or token ids, which are used as they are.
            params: how tokens are chosen and when to stop; None: llama.cpp's defaults.
            n_draft_max: longest draft for this request, up to the engine's; 0: plain decoding.
            prompt_progress: called with (tokens read, tokens in the prompt) while the prompt is read; in the
                engine's thread. What it raises ends the request.

        Raises:
            InvalidRequest: an empty prompt, invalid UTF-8, an unknown token id, an impossible parameter.
            GrammarError: the grammar can't be parsed.
            ContextFull: the prompt does not fit into the context.
            DecodeError: libllama failed.
            Closed: the engine is closed.

        Ctrl-C ends the request and raises KeyboardInterrupt; the engine goes on with the next one.
        """
        generation = self.stream(prompt, params, n_draft_max=n_draft_max, prompt_progress=prompt_progress)
        try:
            return generation.result()
        except BaseException:
            generation.cancel()
            raise

    def stream(
        self,
        prompt: str | bytes | Sequence[int],
        params: SamplingParams | None = None,
        *,
        n_draft_max: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
    ) -> Generation:
        """Starts a request and returns at once; iterate what it returns for the chunks of text, round by round.

        Parameters and errors are those of `generate`; errors of the prompt and the parameters come at once, others
        while iterating. Leaving the iteration early (``break`` and dropping the object, `Generation.cancel`, or its
        use as a context manager) ends the request.
        """
        worker = self._open_worker()
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be a SamplingParams, not {params!r}", name="params", value=params)
        if n_draft_max is not None:
            check_integer(n_draft_max, "n_draft_max", 0)
        check_callback(prompt_progress, "prompt_progress")
        tokens = prompt_tokens(prompt, self._model.vocab)
        n_ctx = self.config.target.n_ctx
        if len(tokens) >= n_ctx:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens and the context holds {n_ctx}, one of which is for the first "
                f"token of the text; shorten the prompt or open the engine with a larger n_ctx",
                n_tokens=len(tokens),
                n_ctx=n_ctx,
            )
        plan = build_chain(params, self._model.vocab, n_ctx=n_ctx, dry_cache=self._dry_cache)
        job = Job(tokens, params, plan, n_draft_max=n_draft_max, prompt_progress=prompt_progress)
        generation = Generation(job, worker.cancel)  # first: should Ctrl-C come now, dropping it cancels the request
        worker.submit(job)
        return generation

    submit = stream

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """The target model: its metadata, vocabulary and chat template."""
        self._open_worker()
        return self._model

    def tokenize(self, prompt: str | bytes) -> list[int]:
        """The token ids a prompt stands for, as `generate` would read it."""
        self._open_worker()
        return prompt_tokens(prompt, self._model.vocab)

    def memory(self) -> dict[str, int]:
        """Bytes taken by target and draft, by kind: ``{"target.model": ..., "draft.logits": ..., ...}``.

        ``model`` are the weights, ``context`` is the cache, ``compute`` intermediate results, and ``logits`` the rows
        of results that are kept.
        """

        def look_up() -> dict[str, int]:
            report: dict[str, int] = {}
            for role, context in zip(("target", "draft"), self._contexts, strict=False):
                for kind, size in context.memory_breakdown().items():
                    report[f"{role}.{kind}"] = size
                report[f"{role}.logits"] = context.n_outputs_max * context.n_vocab * SIZE_OF_LOGIT
            return report

        return self._open_worker().ask(look_up)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._worker is None or self._worker.closed

    def close(self) -> None:
        """Ends all requests (as cancelled) and frees models and contexts. Safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            self._dry_cache = DryCache()  # its samplers hold the model

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._worker is not None:
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine can't be copied or pickled; open another one")

    def __repr__(self) -> str:
        if self.closed:
            return "<Engine closed>"
        who = ", ".join(self.config.speculators) or "no speculation"
        return f"<Engine {self.config.target.description}, {who}, n_ctx {self.config.target.n_ctx}>"

    def _open_worker(self) -> Worker:
        if self._worker is None:
            raise Closed("the engine is closed; open a new one")
        return self._worker


def _require_own_threads() -> None:
    """OpenMP's threads do not survive a fork, and the first computation in the child would wait for them for ever."""
    global _process
    if _process is None:
        _process = os.getpid()
    elif _process != os.getpid():
        raise ContextError(
            "this process was forked from one in which an engine had been opened, and libllama's threads stayed there; "
            "start processes with multiprocessing's 'spawn' method"
        )


def _close_all() -> None:
    """At exit: a thread inside libllama must not outlive the interpreter."""
    for engine in list(_open_engines):
        engine.close()


atexit.register(_close_all)
