"""``pyspec info`` and ``pyspec models``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import run


def test_info_describes_the_build(capfd: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capfd, "info", "--json")[0])
    assert document["llama_version"].startswith("0.5.0")
    assert "CPU" in document["backends"]
    assert document["devices"]
    out, _ = run(capfd, "info")
    for part in (document["version"], document["llama_version"], document["compiler"], "CPU features"):
        assert part in out
    out, _ = run(capfd, "--version")
    assert out.startswith(f"pyspec {document['version']} (llama.cpp 0.5.0")


def test_info_says_whose_matrix_products_a_build_has(capfd: pytest.CaptureFixture[str]) -> None:
    llamafile = json.loads(run(capfd, "info", "--json")[0])["llamafile"]
    out, _ = run(capfd, "info")
    (line,) = (line for line in out.splitlines() if line.strip().startswith("matrix products"))
    assert ("llamafile's from two rows" in line) == llamafile


def test_info_describes_a_model(smollm2: Path, gemma3: Path, capfd: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capfd, "info", str(smollm2), "--json")[0])
    assert document["architecture"] == "llama"
    assert document["n_params"] == 134_515_008
    assert document["n_ctx_train"] == 8192
    assert document["n_layer"] == 30
    assert document["n_layer_nextn"] == 0
    assert (document["n_head"], document["n_head_kv"]) == (9, 3)
    assert document["memory"] == "attention"
    assert document["vocab"]["n_tokens"] == 49_152
    assert document["vocab"]["type"] == "bpe"
    assert "<|im_end|>" in document["vocab"]["eog"].values()
    assert "<|im_start|>" in document["chat_template"]
    assert sum(document["weights"].values()) < document["size"] == smollm2.stat().st_size

    document = json.loads(run(capfd, "info", str(gemma3), "--json")[0])
    assert (document["memory"], document["sliding_window"]) == ("sliding window", 512)
    assert document["vocab"]["n_tokens"] == 262_144

    out, _ = run(capfd, "info", "smollm2")
    for part in ("134.5 million parameters", "8,192 tokens", "49,152 tokens", "bpe", "q4_1"):
        assert part in out


@pytest.mark.parametrize(
    ("name", "memory", "nextn"),
    [
        ("llama", "attention", 0),
        ("gemma3", "sliding window", 0),
        ("mamba", "recurrent", 0),
        ("qwen35", "hybrid", 0),
        ("qwen35-mtp", "hybrid", 1),
        ("step35", "sliding window", 2),
        ("vocab-only", "attention", 0),
        ("bert", "attention", 0),
        ("t5", "attention", 0),
        ("eagle3", "attention", 0),
        ("dflash", "attention", 0),
    ],
)
def test_info_reads_every_kind_of_model(
    name: str, memory: str, nextn: int, tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(run(capfd, "info", str(tiny(name)), "--json")[0])
    assert document["memory"] == memory
    assert document["n_layer_nextn"] == nextn
    out, _ = run(capfd, "info", str(tiny(name)))
    assert document["architecture"] in out


def test_info_tells_whether_a_draft_fits(capfd: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capfd, "info", "smollm2", "-md", "smollm2")
    assert "can draft for it" in out
    out, _ = run(capfd, "info", "smollm2", "-md", "gemma3", code=1)
    assert "'bpe'" in out
    assert "'spm'" in out
    document = json.loads(run(capfd, "info", "smollm2", "-md", "gemma3", "--json", code=1)[0])
    assert document["draft"]["compatible"] is False
    assert "type" in document["draft"]["reason"]


def test_info_tells_what_a_draft_reads_and_whether_that_is_there(
    tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(run(capfd, "info", str(tiny("dflash")), "-md", str(tiny("eagle3")), "--json", code=1)[0])
    assert document["drafts_as"] == "draft-dflash"
    assert document["reads"] == {"layers": [1, 3], "width": 64, "block_size": 4}
    assert document["draft"]["kind"] == "draft-eagle3" and "layer 0" in document["draft"]["reason"]
    out, _ = run(capfd, "info", str(tiny("step35")), "-md", str(tiny("step35-nextn")))
    assert "2; they draft (draft-mtp)" in out and "layers, widths and vocabularies agree" in out


# models


def test_models_are_listed_with_their_state(smollm2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listed = {entry["name"]: entry for entry in json.loads(run(capfd, "models", "list", "--json")[0])}
    assert listed["smollm2"]["state"] == "ready"
    assert listed["smollm2"]["path"] == str(smollm2)
    assert listed["gemma3"]["licence"] == "Gemma Terms"
    out, _ = run(capfd, "models", "list")
    assert re.search(r"smollm2\s+Q4_1\s+98 MB\s+ready\s+1 package\s+Apache-2\.0", out)


def test_models_path_prints_a_path_and_fetches_nothing(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(capfd, "models", "path", "smollm2")[0] == f"{smollm2}\n"
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "empty"))
    _, err = run(capfd, "models", "path", "smollm2", code=1)
    assert "pyspec models fetch smollm2" in err
    assert not (tmp_path / "empty").exists()


def test_models_fetch_shows_the_licence_and_prints_the_path(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / smollm2.name).symlink_to(smollm2)
    monkeypatch.setenv("PYSPEC_CACHE", str(cache))
    out, err = run(capfd, "models", "fetch", "smollm2", "smollm2-q4_0")
    assert out == f"{cache / smollm2.name}\n{cache / 'SmolLM2-135M-Instruct.Q4_0.gguf'}\n"
    assert "making smollm2-q4_0" in err

    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "gemma"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    _, err = run(capfd, "models", "fetch", "gemma3", code=1)
    assert "Gemma Terms of Use" in err
    assert "https://ai.google.dev/gemma/terms" in err
    assert "cannot fetch the model 'gemma3'" in err
