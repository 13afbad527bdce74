"""What engines take of the machine's memory, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspec import DraftModel, Engine, SamplingParams

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")

GEMMA_VOCAB = 262_144
KINDS = ("model", "context", "compute", "logits")
MB = 1e6

PRELUDE = """
    import gc, json, sys
    from pathlib import Path
    from pyspec import DraftModel, Engine, Model, SamplingParams

    def status(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def rss():
        return status("VmRSS:")

    def peak():
        return status("VmHWM:")

    arguments = json.loads(sys.argv[1])
"""


def measure(script: str, **arguments: Any) -> dict[str, Any]:
    """What a script prints last, as JSON."""
    source = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps(arguments)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


OPEN = """
    model = Model(arguments["target"])
    before = rss()
    engine = Engine(model, speculation=DraftModel(arguments["draft"], n_max=8), n_ctx=512, n_batch=2048)
    opened = rss()
    report = engine.memory()
    engine.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=24))
    print(json.dumps({
        "outputs": engine.config.target.n_outputs_max, "draft outputs": engine.config.draft.n_outputs_max,
        "opened": opened - before, "used": rss() - before, "memory": report,
    }))
"""


def test_logits_are_reserved_for_the_rows_of_a_round(gemma3: Path) -> None:
    """262,144 logits a row: nine rows are 9.4 MB, n_batch rows would be 2.1 GB."""
    report = measure(OPEN, target=str(gemma3), draft=str(gemma3))
    assert report["outputs"] == 9 and report["draft outputs"] == 1
    memory = report["memory"]
    rows = 9 * GEMMA_VOCAB * 4
    assert memory["target.logits"] == rows and memory["draft.logits"] == GEMMA_VOCAB * 4
    contexts = sum(size for kind, size in memory.items() if not kind.endswith(".model"))
    # Weights of the draft are mapped or repacked; everything else is in the report.
    assert report["opened"] < 1.2 * (contexts + memory["draft.model"]) + 50 * MB
    assert report["used"] < 1.2 * (contexts + memory["draft.model"]) + 100 * MB < 1000 * MB


GENERATE = """
    speculation = DraftModel(arguments["draft"], n_max=8) if arguments["draft"] else "none"
    engine = Engine(arguments["target"], speculation=speculation, n_ctx=4096, n_batch=512, n_ubatch=256)
    opened = peak()
    prompt = "The water cycle moves water around the planet. " * 70
    result = engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True))
    memory = engine.memory()
    print(json.dumps({
        "peak": peak(), "prompt": result.stats.prompt_tokens, "tokens": result.token_ids,
        "drafted": result.stats.drafted, "draft": memory.get("draft.model", 0), "memory": memory,
    }))
"""


def test_speculation_costs_little_memory_beyond_the_drafts_weights(gemma3_q4_0: Path) -> None:
    """A prompt longer than n_batch, a context of 4,096 tokens, a vocabulary of 262,144."""
    plain = measure(GENERATE, target=str(gemma3_q4_0), draft=None)
    fast = measure(GENERATE, target=str(gemma3_q4_0), draft=str(gemma3_q4_0))
    assert plain["prompt"] == fast["prompt"] > 512
    assert fast["drafted"] > 0 and plain["drafted"] == 0
    assert fast["peak"] - plain["peak"] - fast["draft"] < 200 * MB, (fast, plain)


def test_the_report_covers_target_and_draft(tiny: Callable[[str], Path], smollm2: Path) -> None:
    with Engine(tiny("llama"), n_ctx=512, speculation="none") as engine:
        assert set(engine.memory()) == {f"target.{kind}" for kind in KINDS}
    draft = DraftModel(smollm2, n_max=8)
    with Engine(smollm2, speculation=draft, n_ctx=1024) as engine:
        memory = engine.memory()
        n_embd_kv, n_layer, n_vocab = 3 * 64, 30, engine.model.vocab.n_tokens
        engine.generate("Once upon a time", SamplingParams(max_tokens=16, temperature=0.0))
        assert engine.memory() == memory  # nothing grows with use
    assert set(memory) == {f"{role}.{kind}" for role in ("target", "draft") for kind in KINDS}
    assert all(size > 0 for size in memory.values())
    weights = smollm2.stat().st_size
    assert 0.9 * weights < memory["target.model"] < 1.1 * weights
    cache = 1024 * n_layer * 2 * n_embd_kv * 2  # K and V in f16
    assert memory["target.context"] == memory["draft.context"] == cache
    assert (memory["target.logits"], memory["draft.logits"]) == (9 * n_vocab * 4, n_vocab * 4)
    assert memory["target.compute"] < 200 * MB > memory["draft.compute"]


def test_a_larger_context_takes_as_much_more_as_its_cache(tiny: Callable[[str], Path]) -> None:
    sizes = {}
    for n_ctx in (512, 4096):
        with Engine(tiny("llama"), n_ctx=n_ctx, speculation="none") as engine:
            sizes[n_ctx] = engine.memory()
    more = sizes[4096]["target.context"] - sizes[512]["target.context"]
    assert more == (4096 - 512) * 4 * 2 * 32 * 2  # 4 layers, K and V, 32 values of two bytes
    assert sizes[4096]["target.model"] == sizes[512]["target.model"]


CYCLES = """
    sizes = []
    for _ in range(30):
        speculation = DraftModel(arguments["draft"], n_max=4)
        with Engine(arguments["target"], speculation=speculation, n_ctx=1024) as engine:
            engine.generate([5, 6, 7], SamplingParams(max_tokens=30, temperature=0.8, logprobs=3, dry_multiplier=0.5))
            try:
                Engine(arguments["target"], draft_model=arguments["misfit"])
            except ValueError:
                pass
            engine.stream([5, 6, 7], SamplingParams(ignore_eos=True))
        gc.collect()
        sizes.append(rss())
    print(json.dumps({"sizes": sizes}))
"""


def test_opening_failing_and_closing_again_and_again(tiny: Callable[[str], Path]) -> None:
    """Engines closed in mid-request, and ones that never opened, give everything back."""
    sizes = measure(
        CYCLES, target=str(tiny("llama")), draft=str(tiny("llama-draft")), misfit=str(tiny("draft-other-texts"))
    )["sizes"]
    assert sizes[-1] < sizes[2] + 5 * MB, sizes


REQUESTS = """
    with Engine(arguments["target"], speculation=DraftModel(arguments["draft"], n_max=4), n_ctx=256) as engine:
        sizes = []
        for i in range(300):
            params = SamplingParams(
                max_tokens=10, seed=i, logprobs=5, stop=["x" * 50], penalty_repeat=1.1, grammar='root ::= [0-9 ]+',
                dry_multiplier=0.1 + i / 1000,
            )
            generation = engine.stream([5, 6, i % 256], params)
            if i % 3:
                generation.result()
            elif i % 2:
                generation.cancel()
            if i % 50 == 49:
                gc.collect()
                sizes.append(rss())
    print(json.dumps({"sizes": sizes}))
"""


def test_many_requests_leave_nothing_behind(tiny: Callable[[str], Path]) -> None:
    sizes = measure(REQUESTS, target=str(tiny("llama")), draft=str(tiny("llama-draft")))["sizes"]
    assert sizes[-1] < sizes[1] + 5 * MB, sizes
