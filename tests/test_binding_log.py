"""libllama's log in Python's logging."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading

import pytest

from pyspec._llama import Context, Model
from pyspec.errors import ModelLoadError


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_levels(tiny, caplog):
    with caplog.at_level(logging.INFO, "pyspec.llama"):
        Model(tiny("llama")).close()
    assert {record.levelname for record in caplog.records} >= {"INFO", "WARNING"}
    assert any("general.architecture" in record.message for record in caplog.records)
    assert all("\n" not in record.message for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pyspec.llama"):
        Model(tiny("llama")).close()
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "pyspec.llama"), Model(tiny("llama")) as model, Context(model):
        pass
    assert "DEBUG" in {record.levelname for record in caplog.records}


def test_errors_are_logged_and_raised(tiny, caplog):
    with pytest.raises(ModelLoadError, match="key not found in model"):
        Model(tiny("llama"), kv_overrides={"general.architecture": "gemma3"})
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_reasons_are_those_of_this_call(tiny, tmp_path):
    """The complaint of an earlier call does not show up again."""
    for architecture in ("gemma3", "mamba"):
        with pytest.raises(ModelLoadError) as caught:
            Model(tiny("llama"), kv_overrides={"general.architecture": architecture})
        assert architecture in str(caught.value)
        assert ("gemma3" in str(caught.value)) == (architecture == "gemma3")


def test_quiet_without_configuration(tiny):
    """A library says nothing on its own."""
    result = run(
        "import sys; from pyspec._llama import *; m = Model(sys.argv[1]); c = Context(m); c.decode([1])",
        str(tiny("llama")),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_with_configuration(tiny):
    result = run(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
        from pyspec._llama import Model
        Model(sys.argv[1])
        """,
        str(tiny("llama")),
    )
    assert result.returncode == 0
    assert "INFO pyspec.llama " in result.stderr


def test_end_of_the_interpreter(tiny):
    """Objects that live until the end, and threads that compute then, are no trouble."""
    result = run(
        """
        import logging, sys, threading, time
        logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
        from pyspec._llama import *
        from pyspec.errors import Closed, DecodeError
        model = Model(sys.argv[1])
        context = Context(model, n_ctx=4096, n_batch=4096)
        other = Context(model)
        other.decode([1])
        row = other.logits()
        sampler = SamplerChain(Sampler.greedy())
        def work():
            try:
                while True:
                    context.memory.clear()
                    context.decode([1] * 2000, outputs=False)
            except (DecodeError, Closed):
                pass
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        """,
        str(tiny("llama")),
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_a_handler_that_uses_the_binding(tiny):
    class Loading(logging.Handler):
        seen = 0

        def emit(self, record: logging.LogRecord) -> None:
            Loading.seen += 1
            if Loading.seen < 3:
                Model(tiny("llama")).close()

    handler = Loading()
    logger = logging.getLogger("pyspec.llama")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        Model(tiny("llama")).close()
        Model(tiny("llama")).close()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert Loading.seen > 3


def test_many_threads(tiny, caplog):
    """Lines of several threads do not mix."""
    path = tiny("gemma3")
    with caplog.at_level(logging.INFO, "pyspec.llama"):
        threads = [threading.Thread(target=lambda: Model(path).close()) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        Model(path).close()
    lines = [record.message for record in caplog.records if "general.architecture" in record.message]
    assert len(lines) == 9
    assert len(set(lines)) == 1


def test_a_log_nobody_reads_is_bounded(tiny):
    """Lines that pile up while no call hands them on are dropped, the oldest first."""
    result = run(
        """
        import logging, sys
        from pyspec._llama import *
        context = Context(Model(sys.argv[1]))
        context.decode([1])
        records = []
        class Keep(logging.Handler):
            def emit(self, record):
                records.append(record.getMessage())
        logging.getLogger("pyspec.llama").addHandler(Keep())
        for _ in range(3):
            try:
                context.logits(5)
            except ValueError:
                pass
        print(len([r for r in records if "invalid logits id 5" in r]) > 0)
        """,
        str(tiny("llama")),
    )
    assert result.stdout == "True\n", result.stderr
