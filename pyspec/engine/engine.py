"""The public face: an engine holds a target model and whoever drafts for it, and writes text."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

from pyspec._llama import Model, giving_memory_back
from pyspec.chat import render
from pyspec.engine import saved
from pyspec.engine.assembly import assemble, prepare
from pyspec.engine.generation import Generation, Job, Result
from pyspec.engine.loading import LoadProgress
from pyspec.engine.metrics import EngineStats
from pyspec.engine.prompt import prompt_tokens
from pyspec.engine.worker import Worker
from pyspec.errors import Closed, ContextError, ContextFull, InvalidRequest, UnsupportedModel
from pyspec.exactness import Exact
from pyspec.exactness.mode import read_exact
from pyspec.sampling import DryCache, Grammars, SamplingParams, build_chain
from pyspec.speculation.config import check_callback, check_integer, check_seconds
from pyspec.speculation.specs import Speculation, longest_draft, speculators_from
from pyspec.speculation.synthetic import Synthetic

SIZE_OF_LOGIT = 4  # bytes; libllama leaves the rows of logits out of its report

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_process: int | None = None  # in which libllama's threads were started


class Engine:
    """Writes text with a GGUF model, faster by speculative decoding, and the same text as without.

    >>> with Engine("target.gguf", speculation=DraftModel("draft.gguf", n_max=8)) as engine:
    ...     print(engine.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=100)).text)

    All methods may be called from any thread and from coroutines. Requests run on a thread of the engine's own, as many
    at once as there are slots; the others wait in the order they came.

    Args:
        target: the model whose text is wanted: a GGUF file, a name that ``pyspec models list`` knows, or an open
            `Model`, which stays open when the engine is closed.
        draft_model: short for ``speculation=DraftModel(draft_model)``, or whatever else the file is made for
            (`DraftMTP`, `DraftEagle3`).
        speculation: who drafts. A `DraftModel`, a draft that reads the target's hidden states (`DraftMTP`,
            `DraftEagle3`), an n-gram method (`NGramSimple`, `NGramMapK`, `NGramMapK4V`, `NGramMod`, `NGramCache`),
            `GrammarDrafts`, any object with ``propose(requests)``, a function ``tokens -> draft``, or several of them
            in the order they are asked (the first that has a draft wins the round; at most one with a model). "auto":
            what a request's grammar forces, then n-grams of the text itself, then the draft model if one is given, or
            else the NextN layers in the target's file, with lengths that pay (see draft_length; with
            draft_length="fixed" and a draft model: without the n-grams). "none" or None: plain decoding.
        n_slots: requests that run at once. They share the models, one context of each, and every decode; a context
            takes n_slots times the memory of one.
        n_ctx: tokens a request may have, prompt and text together; None: as many as the model was trained with.
        n_cells: tokens that all slots may hold together, in one pool; None: n_ctx for each, in pools of their own. A
            common pool saves memory where requests are seldom long at the same time; when it is full, the youngest
            request ends with ContextFull. In it, where a text lies depends on the others', attention adds up in
            another order, and where two tokens are nearly tied a text may differ from what it is alone.
        n_batch: most rows in one decode; drafts shrink where it is smaller than a draft and one.
        n_ubatch: most rows computed at once: how a long prompt is cut. Larger is faster up to a point and takes
            memory for intermediate results.
        n_prompt_rows: most prompt tokens read in a round in which other requests generate. More: a new request starts
            to write sooner. Fewer: those that write are held up less while it is read.
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
        n_queue_max: most requests that wait for a slot.
        stream_buffer: chunks (rounds) a stream may be ahead of its reader; then its request waits, and keeps its slot.
        stall_timeout: seconds a stream may wait for its reader before its request ends with ConsumerStalled.
        prefix_reuse: start a request from what an earlier one that began the same way has left in a slot or in the
            cache; only the rest of the prompt is read. Its logits then differ in their last bits from those of a prompt
            that is read at once, and with them, where two tokens are nearly tied, a text. None: with one slot, only
            where the prompt goes on from all that was left, as in the next turn of a conversation, so that the same
            requests give the same texts again; with several, wherever it saves reading. False: never.
        prefix_cache_mib: host memory for sequences whose slot went to somebody else, in MiB; the least recently used
            leave first. 0: none.
        exact: exact mode: the text is, to the bit, that of plain decoding with the same engine, whoever drafts. True:
            it is measured (and remembered) in how wide a decode the target's rows are what they are alone, and no wider
            one is used; drafts are shorter for it where that is narrow. Flash attention, type_v and use_extra_bufts
            become what makes it wide, prompts are read n_prompt_rows at a time, each in a decode of its own, and
            prefixes are used again only where that changes nothing. An `Exact` says how strict it is. `config.exact`
            has what came of it; where the target is not exact in any way, it is decoded plainly. The first time that
            takes some seconds.
        synthetic: for benchmarks: acceptance is drawn at random, and the text is not the model's.
        load_progress: called with ("target" or "draft", 0..1) while models load, and with ("exactness", 0..1) while
            that is measured; what it raises ends the loading.

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
        n_slots: int = 1,
        n_ctx: int | None = 4096,
        n_cells: int | None = None,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_prompt_rows: int = 128,
        n_threads: int = 0,
        n_threads_batch: int = 0,
        n_gpu_layers: int = -1,
        flash_attn: str = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        use_extra_bufts: bool = True,
        n_draft_max: int | None = None,
        draft_length: Literal["auto", "fixed"] | None = None,
        n_queue_max: int = 1024,
        stream_buffer: int = 512,
        stall_timeout: float = 300.0,
        prefix_reuse: bool | None = None,
        prefix_cache_mib: int = 256,
        exact: bool | Exact = False,
        synthetic: Synthetic | None = None,
        load_progress: LoadProgress | None = None,
    ) -> None:
        check_callback(load_progress, "load_progress")
        specs = speculators_from(speculation, draft_model, adaptive=draft_length != "fixed", target=target)
        for name, value, low in (
            ("n_slots", n_slots, 1),
            ("n_prompt_rows", n_prompt_rows, 1),
            ("n_queue_max", n_queue_max, 1),
            ("stream_buffer", stream_buffer, 1),
            ("prefix_cache_mib", prefix_cache_mib, 0),
            ("n_batch", n_batch, 1),
            ("n_ubatch", n_ubatch, 1),
            ("n_threads", n_threads, 0),
            ("n_threads_batch", n_threads_batch, 0),
            ("n_gpu_layers", n_gpu_layers, -1),
        ):
            check_integer(value, name, low)
        if n_ctx is not None:
            check_integer(n_ctx, "n_ctx", 1)
        if n_cells is not None:
            check_integer(n_cells, "n_cells", 1)
        check_seconds(stall_timeout, "stall_timeout")
        if n_draft_max is not None:
            check_integer(n_draft_max, "n_draft_max", 0)
        longest = max((longest_draft(spec) for spec in specs), default=0)
        if n_draft_max is not None:
            longest = min(longest, n_draft_max)
        if draft_length not in (None, "auto", "fixed"):
            raise InvalidRequest(
                f"draft_length must be 'auto' or 'fixed', not {draft_length!r}", name="draft_length", value=draft_length
            )
        exactly = read_exact(exact)
        if exactly is not None and n_cells is not None and n_slots > 1:
            raise InvalidRequest(
                "exact mode needs a pool of cells for each slot, as where a row lies decides how it is rounded; "
                "leave n_cells out",
                name="n_cells",
                value=n_cells,
            )
        if exactly is not None and synthetic is not None:
            raise InvalidRequest(
                "with synthetic acceptance the text is not the model's, let alone exact; leave one of them out",
                name="synthetic",
                value=synthetic,
            )
        _require_own_threads()
        adaptive = bool(specs) and (draft_length or ("auto" if speculation == "auto" else "fixed")) == "auto"

        assembly = assemble(
            target,
            specs,
            n_ctx=n_ctx,
            n_slots=n_slots,
            n_cells=n_cells,
            n_batch=n_batch,
            n_draft_max=longest,
            n_prompt_rows=n_prompt_rows,
            stall_timeout=stall_timeout,
            prefix_reuse=prefix_reuse,
            prefix_cache=prefix_cache_mib << 20,
            adaptive=adaptive,
            synthetic=synthetic,
            exact=exactly,
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
        self._grammars: Grammars | None = Grammars(assembly.model.vocab, n_texts=n_slots)
        self._scheduler = assembly.scheduler
        self._stream_buffer = stream_buffer
        self._can_shift = assembly.contexts[0].can_shift and self.config.rollback == "cut"
        self._worker = Worker(assembly.scheduler, assembly.contexts, assembly.release, n_queue_max=n_queue_max)
        _open_engines.add(self)
        try:
            self.config = self._worker.ask(lambda: prepare(assembly)).config
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
        n_keep: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Result:
        """Writes the continuation of a prompt and returns it whole.

        Args:
            prompt: text (a BOS token is put in front where the model wants one, and special tokens written out in
                it are recognised), UTF-8 bytes, or token ids, which are used as they are.
            params: how tokens are chosen and when to stop; None: llama.cpp's defaults.
            n_draft_max: longest draft for this request, up to the engine's; 0: plain decoding.
            n_keep: None: the request ends when the context is full. Else the text goes on then: this many tokens from
                the beginning are kept (-1: the prompt), the older half of the others is forgotten.
            prompt_progress: called with (tokens read, tokens in the prompt) while the prompt is read; in the
                engine's thread. What it raises ends the request.
            timeout: seconds from now after which the request ends, with finish_reason "timeout" and what there is by
                then. None: none.
            priority: requests with a larger one get a free slot first.

        Raises:
            QueueFull: too many requests wait already.
            InvalidRequest: an empty prompt, invalid UTF-8, an unknown token id, an impossible parameter.
            GrammarError: the grammar or the schema can't be used, or leads to where no token fits.
            ContextFull: the prompt does not fit into the context.
            DecodeError: libllama failed.
            Closed: the engine is closed.

        Ctrl-C ends the request and raises KeyboardInterrupt; the engine goes on with the next one.
        """
        generation = self.stream(
            prompt,
            params,
            n_draft_max=n_draft_max,
            n_keep=n_keep,
            prompt_progress=prompt_progress,
            timeout=timeout,
            priority=priority,
        )
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
        n_keep: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        priority: int = 0,
        steady: bool = False,
    ) -> Generation:
        """Starts a request and returns at once; iterate what it returns for the chunks of text, round by round.

        In a coroutine: ``async for chunk in engine.stream(...)``, ``result = await engine.stream(...)``. Neither
        takes a thread.

        Args:
            steady: chunks are single tokens, handed out one by one at the speed with which they come, so that text
                flows where it would come in bursts; each is held back for about two rounds, at most three. The last
                ones come at once, when the text is complete, so that it is so no later. False: what a round brought
                comes at once.

        The other parameters and the errors are those of `generate`; errors of the prompt and the parameters come at
        once, others while iterating. Leaving the iteration early (``break`` and dropping the object,
        `Generation.cancel`, or its use as a context manager) ends the request.
        """
        return self._start(
            prompt,
            params,
            n_draft_max=n_draft_max,
            n_keep=n_keep,
            prompt_progress=prompt_progress,
            timeout=timeout,
            priority=priority,
            steady=steady,
        )

    def _start(
        self,
        prompt: str | bytes | Sequence[int],
        params: SamplingParams | None,
        *,
        n_draft_max: int | None = None,
        n_keep: int | None = None,
        prompt_progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
        priority: int = 0,
        steady: bool = False,
        before_leaving: Callable[[int], None] | None = None,
    ) -> Generation:
        worker = self._open_worker()
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be a SamplingParams, not {params!r}", name="params", value=params)
        if n_draft_max is not None:
            check_integer(n_draft_max, "n_draft_max", 0)
        if n_keep is not None:
            check_integer(n_keep, "n_keep", -1)
            if not self._can_shift:
                raise UnsupportedModel(
                    f"{self._model.path} ({self._model.arch}) keeps its tokens in a memory that can't be shifted, or "
                    "with keys of a type that can't (bf16); leave n_keep out"
                )
        check_callback(prompt_progress, "prompt_progress")
        if not isinstance(steady, bool):
            raise InvalidRequest(f"steady must be True or False, not {steady!r}", name="steady", value=steady)
        if timeout is not None:
            check_seconds(timeout, "timeout")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequest(f"priority must be an integer, not {priority!r}", name="priority", value=priority)
        tokens = prompt_tokens(prompt, self._model.vocab)
        n_ctx = self.config.target.n_ctx
        if len(tokens) >= n_ctx:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens and the context holds {n_ctx}, one of which is for the first "
                f"token of the text; shorten the prompt or open the engine with a larger n_ctx",
                n_tokens=len(tokens),
                n_ctx=n_ctx,
            )
        plan = build_chain(
            params, self._model.vocab, n_ctx=n_ctx, dry_cache=self._dry_cache, grammars=self._grammars
        )
        job = Job(
            tokens,
            params,
            plan,
            n_draft_max=n_draft_max,
            n_keep=n_keep,
            prompt_progress=prompt_progress,
            timeout=timeout,
            priority=priority,
            n_ahead=self._stream_buffer,
            steady=steady,
            before_leaving=before_leaving,
        )
        generation = Generation(job, worker.cancel)  # first: should Ctrl-C come now, dropping it cancels the request
        worker.submit(job)
        return generation

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Result:
        """Writes the assistant's answer to a conversation, by the model's own chat template.

        Args:
            messages: mappings with ``role`` and ``content``, oldest first. Special tokens written out in a message are
                recognised, so text from strangers should not contain them.
            params: as for `generate`.
            template: another template than the model's: the name of a built-in one, or Jinja source.
            variables: further variables of the template (``tools``, ``enable_thinking``, ...).
            **options: those of `generate`.

        Raises:
            UnsupportedModel: the model has no template, or one that can't be rendered here.
            InvalidRequest: malformed messages, or ones that the template refuses; and what `generate` raises.
        """
        generation = self.stream_chat(messages, params, template=template, variables=variables, **options)
        try:
            return generation.result()
        except BaseException:
            generation.cancel()
            raise

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Starts the answer to a conversation and returns at once; parameters as for `chat`, the rest as `stream`."""
        self._open_worker()
        prompt = render(self._model, messages, template=template, **dict(variables or {}))
        return self.stream(prompt, params, **options)

    submit = stream
    astream = stream

    async def agenerate(
        self,
        prompt: str | bytes | Sequence[int],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Result:
        """`generate` for coroutines, with its parameters and errors; cancelling the task cancels the request."""
        return await self.stream(prompt, params, **options)

    # -- prefixes ------------------------------------------------------------------------------------------------

    def save_prefix(self, prompt: str | bytes | Sequence[int], path: str | os.PathLike[str]) -> int:
        """Reads a prompt and saves what the models know then to a file, for `load_prefix` in another process.

        Args:
            prompt: as for `generate`.
            path: the file, which is replaced; it takes about as much as the prompt takes of the context's memory.

        Returns:
            Its size in bytes.

        Raises:
            OSError: the file can't be written; and what `generate` raises.
        """
        sizes: list[int] = []
        name = os.fspath(path)
        folder = os.path.dirname(os.path.abspath(name))
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"there is no folder {folder} to save to")

        def save(slot: int) -> None:
            sizes.append(saved.write(name, self._scheduler.slots.saved(slot), self._identity()))

        generation = self._start(prompt, SamplingParams(temperature=0.0, max_tokens=1), before_leaving=save)
        try:
            generation.result()
        except BaseException:
            generation.cancel()
            raise
        return sizes[0]

    def load_prefix(self, path: str | os.PathLike[str]) -> list[int]:
        """Takes a saved prefix into the cache: requests that begin like that need not read it.

        Returns:
            Its tokens.

        Raises:
            StateError: the file is damaged, or belongs to another model, vocabulary, type of cache or version.
            InvalidRequest: it is larger than the cache, or there is none; or the engine is exact.
            OSError: it can't be read.
        """
        worker = self._open_worker()
        if self.config.exact is not None:
            raise InvalidRequest(
                "an exact engine does not load prefixes: who has computed them, and how, it can't know", name="path"
            )
        entry = saved.read(path, self._identity())
        if not worker.ask(lambda: self._scheduler.slots.cache.add(entry)):
            raise InvalidRequest(
                f"{os.fspath(path)} takes {entry.size >> 20} MiB, and the cache of prefixes holds "
                f"{self._scheduler.slots.cache.limit >> 20}; open the engine with a larger prefix_cache_mib",
                name="path",
                value=path,
            )
        return list(entry.tokens)

    def _identity(self) -> dict[str, Any]:
        return saved.identity(self._model, self.config.target.type_k, self.config.target.type_v)

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

    def stats(self) -> EngineStats:
        """What the engine is doing and has done: queue, slots, tokens, rounds, acceptance, times."""
        worker = self._open_worker()
        return worker.ask(lambda: self._scheduler.stats(worker.n_waiting))

    def memory(self) -> dict[str, int]:
        """Bytes taken by target and draft, by kind: ``{"target.model": ..., "draft.logits": ..., ...}``.

        ``model`` are the weights, ``context`` is the cache, ``compute`` intermediate results, and ``logits`` the rows
        of results that are kept; of a draft with several contexts (one for each NextN layer) all of them together. A
        draft that is part of the target's file has no ``draft.model``. With a draft vocabulary there is ``draft.head``,
        the reduced output head.
        """
        vocab = self.config.draft_vocab

        def look_up() -> dict[str, int]:
            report: Counter[str] = Counter()
            models: list[Model] = []
            for i, context in enumerate(self._contexts):
                role = "draft" if i else "target"
                parts = context.memory_breakdown()
                if context.model in models:
                    del parts["model"]
                models.append(context.model)
                for kind, size in parts.items():
                    report[f"{role}.{kind}"] += size
                report[f"{role}.logits"] += context.n_outputs_max * context.n_vocab * SIZE_OF_LOGIT
            if vocab is not None and vocab.n_bytes:
                report["draft.head"] = vocab.n_bytes
            return dict(report)

        return self._open_worker().ask(look_up)

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._worker is None or self._worker.closed

    def close(self, *, drain: bool = False) -> None:
        """Ends all requests (as cancelled) and frees models and contexts. Safe to call twice.

        Args:
            drain: finish the requests there are first, the waiting ones too; new ones are refused meanwhile.
        """
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(drain=drain)
            with giving_memory_back():
                del worker  # what is compiled holds memory of the thread that has ended
                self._dry_cache = DryCache()  # its samplers hold the model
                self._grammars = None  # likewise

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
