"""Putting an engine together: models, contexts, speculators, decoder, and how all of it is given back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pyspec._decoder import Decoder
from pyspec._drafting import DraftRunner
from pyspec._llama import Context, Model, giving_memory_back, release_threads
from pyspec._model_drafting import ModelRunner
from pyspec._speculator import CompiledSpeculator
from pyspec.engine.config import DraftVocabConfig, EngineConfig, ExactConfig
from pyspec.engine.hidden_drafts import HiddenDraft, hidden_runner, load_hidden_draft, open_hidden_draft
from pyspec.engine.loading import (
    MODEL_SETTINGS,
    Loaded,
    LoadProgress,
    load_model,
    open_draft,
    open_target,
    require_text_model,
)
from pyspec.engine.prefixes import PrefixCache, Slots
from pyspec.engine.rounds import Setup
from pyspec.engine.scheduler import Scheduler
from pyspec.errors import DecodeError, InvalidRequest, UnsupportedModel
from pyspec.exactness import Exact
from pyspec.exactness.mode import choose, explain
from pyspec.speculation.calibrate import measure_decodes
from pyspec.speculation.chain import Chain
from pyspec.speculation.config import DraftModel
from pyspec.speculation.controller import LengthController
from pyspec.speculation.grammar import ForcedTokens, GrammarDrafts
from pyspec.speculation.hidden_config import HiddenStateDraft
from pyspec.speculation.ngram_config import NGramSpec, save_learned
from pyspec.speculation.scripted import GuardedSpeculator
from pyspec.speculation.specs import ModelSpec, SpeculatorSpec, guarded
from pyspec.speculation.synthetic import Synthetic, conditional

# A draft vocabulary nobody asked for is used where it makes a decode of the draft model shorter by this share, by so
# many comparisons.
LEAST_GAIN = 0.1
N_TRIALS = 4

_log = logging.getLogger("pyspec.engine")

# Row counts whose cost is looked at before the first request, where lengths are chosen by cost.
TRIAL_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64)
# The same for the draft model, in so many passes: what disturbs a moment falls on one of them.
DRAFT_TRIALS = ((1, 2, 32), (1, 2))


@dataclass(frozen=True)
class Assembly:
    """An engine's parts.

    Attributes:
        model: the target.
        setup: what requests share.
        scheduler: who shares the rounds out.
        contexts: the target's, then the draft's.
        config: the settings as they were resolved.
        release: frees all of it, but for a model that was given.
    """

    model: Model
    setup: Setup
    scheduler: Scheduler
    contexts: list[Context]
    config: EngineConfig
    release: Callable[[], None]


def assemble(
    target: Any,
    specs: Sequence[SpeculatorSpec],
    *,
    n_ctx: int | None,
    n_slots: int,
    n_cells: int | None,
    n_batch: int,
    n_draft_max: int,
    n_prompt_rows: int,
    stall_timeout: float,
    prefix_reuse: bool | None,
    prefix_cache: int,
    adaptive: bool,
    synthetic: Synthetic | None,
    exact: Exact | None,
    settings: dict[str, Any],
    progress: LoadProgress | None,
) -> Assembly:
    """Loads and connects everything; what was opened is closed again when something fails.

    Args:
        prefix_reuse: None: with one slot only what all of a prompt goes on from, so that the same request again gives
            the same text to the bit.
        prefix_cache: bytes of saved sequences.
        exact: exact mode, and how strict; None: off.
        settings: parameters of the target's context and model.
    """
    opened: list[Loaded] = []
    owned: list[Model] = []  # a Model that was given stays open
    own_nextn = any(isinstance(spec, HiddenStateDraft) and spec.path is None for spec in specs)
    try:
        if isinstance(target, Model):
            model = target
        else:
            options = {name: settings[name] for name in MODEL_SETTINGS}
            model = load_model(target, "target", progress, load_mtp=own_nextn, **options)
            owned.append(model)
        require_text_model(model, "target")
        n_ctx = model.n_ctx_train if n_ctx is None else n_ctx
        prompt_chunk = min(n_batch, settings["n_ubatch"])
        exactly: ExactConfig | None = None
        if exact is not None:
            prompt_chunk = min(prompt_chunk, n_prompt_rows)
            exactly, model, settings = _make_exact(
                exact,
                model,
                owned,
                n_slots=n_slots,
                n_ctx=n_ctx,
                n_batch=n_batch,
                prompt_rows=prompt_chunk,
                settings=settings,
                load_mtp=own_nextn,
                progress=progress,
            )
            prefix_reuse = prefix_reuse if exactly.prefix_reuse else False
            n_draft_max = min(n_draft_max, exactly.width - 1)
            if not exactly.speculates:
                specs = ()
        hidden: HiddenDraft | None = None
        for spec in specs:
            if isinstance(spec, HiddenStateDraft):
                hidden = load_hidden_draft(model, spec, progress)
                if hidden.own_file:
                    owned.append(hidden.model)
        tgt = open_target(
            model,
            n_ctx=n_ctx,
            n_slots=n_slots,
            n_cells=n_cells,
            n_draft_max=n_draft_max,
            n_batch=n_batch,
            config=settings,
            exact=exactly,
        )
        opened.append(tgt)
        dft: Loaded | None = None
        speculators: list[GuardedSpeculator | CompiledSpeculator | ForcedTokens] = []
        for spec in specs:
            if isinstance(spec, DraftModel):
                dft = open_draft(tgt, spec, progress)
                opened.append(dft)
                owned.append(dft.model)
                speculators.append(
                    DraftRunner(
                        dft.context,
                        tgt.context.n_vocab,
                        n_max=spec.n_max,
                        n_min=spec.n_min,
                        p_min=spec.p_min,
                        replay=spec.sync == "replay",
                        capacity=dft.config.n_ctx if n_slots > 1 else None,
                        head=dft.head,
                    )
                )
            elif hidden is not None and spec is hidden.spec:
                heads = open_hidden_draft(hidden, tgt)
                opened += heads
                dft = heads[0]
                speculators.append(hidden_runner(hidden, heads, tgt))
            elif isinstance(spec, NGramSpec):
                speculators.append(spec.build(n_slots, tgt.context.n_vocab))
            elif isinstance(spec, GrammarDrafts):
                speculators.append(ForcedTokens(spec))
            else:
                speculators.append(guarded(spec))
        decoder = Decoder(tgt.context, [s for s in speculators if isinstance(s, CompiledSpeculator)])
        if synthetic is not None:
            decoder.set_synthetic(conditional(synthetic.for_drafts_of(n_draft_max)), synthetic.seed)
        if exactly is not None:
            decoder.set_exact(exactly.width, exactly.least_rows)
        controller = _controller(tgt, speculators, n_draft_max, exactly) if adaptive and specs else None
    except BaseException:
        _release(opened, owned)
        raise

    def release() -> None:
        for spec, speculator in zip(specs, speculators, strict=True):
            save_learned(spec, speculator)
        _release(opened, owned)

    setup = Setup(
        decoder=decoder,
        vocab=model.vocab,
        chain=Chain(decoder, speculators, controller),
        n_slots=n_slots,
        n_draft_max=n_draft_max,
        n_ctx=tgt.config.n_ctx,
        n_rows=tgt.context.n_batch,
        prompt_chunk=min(prompt_chunk, tgt.context.n_batch, tgt.context.n_ubatch),
        n_prompt_rows=n_prompt_rows,
        stall_timeout=stall_timeout,
        synthetic=synthetic is not None,
        exact=exactly,
    )
    slots = Slots(
        decoder,
        n_slots,
        reuse=prefix_reuse is not False,
        rewind=n_slots > 1 if prefix_reuse is None else prefix_reuse,
        cache=PrefixCache(0 if prefix_reuse is False else prefix_cache),
    )
    return Assembly(
        model=model,
        setup=setup,
        scheduler=Scheduler(setup, slots),
        contexts=[loaded.context for loaded in opened],
        config=EngineConfig(
            target=tgt.config,
            draft=None if dft is None else dft.config,
            speculators=tuple(speculator.name for speculator in speculators),
            n_slots=n_slots,
            rollback=decoder.rollback,
            n_draft_max=n_draft_max,
            draft_length="fixed" if controller is None else "auto",
            draft_options=next((spec.to_dict() for spec in specs if isinstance(spec, ModelSpec)), None),
            draft_vocab=None if dft is None else dft.vocab,
            exact=exactly,
        ),
        release=release,
    )


def _make_exact(
    exact: Exact,
    model: Model,
    owned: list[Model],
    *,
    n_slots: int,
    n_ctx: int,
    n_batch: int,
    prompt_rows: int,
    settings: dict[str, Any],
    load_mtp: bool,
    progress: LoadProgress | None,
) -> tuple[ExactConfig, Model, dict[str, Any]]:
    """Finds out how an engine can be exact: (what that comes to, the model, and the settings to use).

    Args:
        owned: the models that are the engine's; only those may be loaded in another way.
        load_mtp: with the target's NextN layers, if it is.

    Raises:
        UnsupportedModel: nothing is exact, and that is not to be put up with.
        InvalidRequest: n_batch has no room for a row and its company.
    """

    def reload(use_extra_bufts: bool) -> Model:
        name = owned.pop().path
        options = {name: settings[name] for name in MODEL_SETTINGS} | {"use_extra_bufts": use_extra_bufts}
        owned.append(load_model(name, "target", progress, load_mtp=load_mtp, **options))
        return owned[-1]

    try:
        model, chosen = choose(
            model,
            exact,
            n_slots=n_slots,
            n_ctx=n_ctx,
            prompt_rows=prompt_rows,
            settings=settings,
            reload=reload if owned else None,
            progress=None if progress is None else lambda _, done: progress("exactness", done),
        )
    finally:
        release_threads()
    explanation = explain(chosen)
    if chosen.width == 1 and exact.fallback == "raise":
        raise UnsupportedModel(f"{model.path} can't be exact with speculation: {explanation}")
    if chosen.width == 1:
        _log.warning("exact mode: %s", explanation)
    else:
        _log.info("exact mode: %s", explanation)
    if n_batch < chosen.least_rows:
        raise InvalidRequest(
            f"n_batch is {n_batch}: exact mode decodes no row alone with this model", name="n_batch", value=n_batch
        )
    config = ExactConfig(
        width=min(chosen.width, n_batch),
        least_rows=chosen.least_rows,
        prompt_rows=prompt_rows,
        prefix_reuse=chosen.prompt_width >= prompt_rows and model.n_swa == 0,  # whose cells go round
        changed=chosen.changed,
        check_every=exact.check_every,
        explanation=explanation,
    )
    return config, model, {**settings, **chosen.changed}


def _controller(
    tgt: Loaded,
    speculators: Sequence[GuardedSpeculator | CompiledSpeculator | ForcedTokens],
    n_draft_max: int,
    exact: ExactConfig | None,
) -> LengthController:
    n_rows_max = min(tgt.context.n_batch, tgt.context.n_outputs_max)
    if exact is not None:
        n_rows_max = max(tgt.context.n_seq_max, min(n_rows_max, exact.width))
    n_model = next((s.n_max for s in speculators if isinstance(s, ModelRunner)), 0)
    own_pools = tgt.context.n_seq_max > 1 and not tgt.context.kv_unified
    return LengthController(n_max=min(n_model, n_draft_max), n_rows_max=n_rows_max, own_pools=own_pools)


def prepare(assembly: Assembly) -> Assembly:
    """What has to be computed before the first request; to be called in the engine's thread.

    In no other: a thread that has computed once keeps helpers of its own (libgomp's), and where all of them together
    are more than there are processors they stop spinning while they wait, which costs every decode a third.

    A draft vocabulary is tried, and an adaptive engine's controller gets a first idea of what decodes cost.

    Returns:
        The same, with what became of the draft vocabulary.
    """
    runner = assembly.setup.chain.draft_model
    vocab = assembly.config.draft_vocab
    if runner is not None and runner.head is not None and vocab is not None:
        why = try_head(runner, only_if_it_pays=vocab.source == "auto")
        if why is not None:
            runner.drop_head()
            vocab = DraftVocabConfig(vocab.source, vocab.n_vocab, unused_because=why, shipped=vocab.shipped)
            assembly = replace(assembly, config=replace(assembly.config, draft_vocab=vocab))
    controller = assembly.setup.chain.controller
    if controller is None:
        return assembly
    rows = [n for n in TRIAL_ROWS if n < controller.n_rows_max]
    controller.switch_ms = measure_decodes(assembly.contexts[0], [*rows, controller.n_rows_max], controller.verify)
    exact = assembly.config.exact
    if exact is not None and exact.least_rows > 1:
        controller.verify.cost_no_less_than(exact.least_rows)
    if runner is not None:
        for trial_rows in DRAFT_TRIALS:
            for reduced in (False,) if runner.head is None else (False, True):
                controller.use_head(reduced=reduced)
                for n in sorted({min(n, runner.context.n_batch) for n in trial_rows}):
                    for ms in runner.time_decodes(n, 3, reduced=reduced)[1:]:
                        controller.draft.observe(n, ms)
    return assembly


def try_head(runner: ModelRunner, *, only_if_it_pays: bool) -> str | None:
    """Compares a reduced output head with the whole one.

    Args:
        runner: of the draft model, with a head; its memory is empty.
        only_if_it_pays: also look whether it makes a decode faster.

    Returns:
        Why it should not be used, or None.
    """
    head = runner.head
    assert head is not None
    why = None
    try:
        compared, different = head.compare([0, 1, head.ids()[0]])
        if different:
            why = f"of {compared} logits of listed tokens {different} are not the whole head's"
    except DecodeError as error:
        why = str(error)
    if why is not None:
        _log.warning("the draft vocabulary is not used: %s", why)
        return why
    if only_if_it_pays:
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(N_TRIALS):
            for reduced in times:
                times[reduced] += runner.time_decodes(1, 4, reduced=reduced)[1:]
        whole, reduced_ms = median(times[False]), median(times[True])
        if reduced_ms > (1 - LEAST_GAIN) * whole:
            return f"a decode takes {reduced_ms:.2f} ms with it and {whole:.2f} ms with the whole vocabulary"
    return None


def _release(opened: list[Loaded], owned: list[Model]) -> None:
    """Closes contexts, draft before target, and the models the engine loaded itself."""
    with giving_memory_back():
        for loaded in reversed(opened):
            if loaded.head is not None:
                loaded.head.close()
            loaded.context.close()
        for model in owned:
            model.close()
        opened.clear()
        owned.clear()
