"""``pyspec info``: what this installation is, or what a model file offers."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pyspec import models
from pyspec._llama import Model, Vocab, n_mtp_heads
from pyspec.buildinfo import build_info
from pyspec.cli.console import FetchDisplay, error_console, output_console, show_log
from pyspec.cli.parser import Parser
from pyspec.errors import ModelLoadError, UnsupportedModel, VocabMismatch
from pyspec.gguf_header import GGUFHeader, read_gguf
from pyspec.speculation.detection import DRAFT_SIMPLE, detect_draft
from pyspec.speculation.pairing import CHECKS
from pyspec.speculation.shipped_lists import shipped_list
from pyspec.speculation.vocab_gate import check_vocabulary
from pyspec.vocab_lists.inspection import head_bytes

_DESCRIPTION = """\
Without a model: what this installation was built from and what it can use.
With a model: what the file offers, and which drafts it can be paired with.
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds ``pyspec info``."""
    parser = commands.add_parser("info", help="show what a model offers, or this build", description=_DESCRIPTION)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file or registered name")
    parser.add_argument(
        "-md",
        "--spec-draft-model",
        "--model-draft",
        dest="draft",
        metavar="FNAME",
        help="a draft model: tell whether the two can be paired (exit code 1 if not)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    console = error_console()
    show_log(console)
    if args.model is None:
        if args.draft is not None:
            args.parser.error("-md needs the target as well: pyspec info TARGET -md DRAFT")
        information = build_info()
    else:
        with FetchDisplay(console) as display:
            target = models.resolve(args.model, display)
            draft = None if args.draft is None else models.resolve(args.draft, display)
        information = describe(str(target), None if draft is None else str(draft))
    if args.json:
        print(json.dumps(information, indent=2, ensure_ascii=False))
    else:
        rows = _build_rows(information) if args.model is None else _model_rows(information)
        _print(rows)
    pair = information.get("draft")
    return 1 if pair is not None and not pair["compatible"] else 0


def describe(path: str, draft: str | None = None) -> dict[str, Any]:
    """What a model file offers, as plain values; with ``draft``, whether that file can draft for it.

    Raises:
        ModelLoadError: one of the files cannot be read.
    """
    header = read_gguf(path)
    with Model(path, vocab_only=True) as model:
        information: dict[str, Any] = {
            "path": path,
            "size": header.size,
            "name": header.metadata.get("general.name"),
            "architecture": header.arch,
            "n_params": header.n_params,
            "weights": _weights(header),
            "n_ctx_train": header.key("context_length"),
            "n_layer": header.key("block_count"),
            "n_layer_nextn": header.key("nextn_predict_layers", 0),
            "drafts_as": _drafts_as(path, header),
            "reads": _reads(header),
            "n_embd": header.key("embedding_length"),
            "n_head": _number(header.key("attention.head_count")),
            "n_head_kv": _number(header.key("attention.head_count_kv", header.key("attention.head_count"))),
            "sliding_window": header.key("attention.sliding_window"),
            "memory": _memory(model, header),
            "vocab": _vocabulary(model.vocab),
            "draft_vocabulary": _draft_vocabulary(model.vocab, header),
            "chat_template": model.chat_template(),
            "registered_drafts": _registered_drafts(model.vocab, header.size),
        }
        if draft is not None:
            information["draft"] = _pair(path, model.vocab, draft)
    return information


def _drafts_as(path: str, header: GGUFHeader) -> str:
    """What the file is as a draft, by llama.cpp's names."""
    kind = detect_draft(path)
    if kind != "draft-mtp":
        return kind
    n_nextn = header.key("nextn_predict_layers", 0)
    return kind if isinstance(n_nextn, int) and n_mtp_heads(header.arch, n_nextn) else DRAFT_SIMPLE


def _reads(header: GGUFHeader) -> dict[str, Any] | None:
    """What a draft reads of its target, where its file says so."""
    layers = header.key("target_layers")
    if header.arch not in ("eagle3", "dflash") or layers is None:
        return None
    width = header.key("target_hidden_size", header.key("embedding_length"))
    return {"layers": [int(layer) for layer in layers], "width": width, "block_size": header.key("block_size")}


def _weights(header: GGUFHeader) -> dict[str, int]:
    """Bytes of the tensors by type, the largest first."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type] += tensor.n_bytes
    return dict(sizes.most_common())


def _number(value: Any) -> int | list[int] | None:
    """A metadata value that may differ from layer to layer."""
    return value if value is None or isinstance(value, int) else [int(entry) for entry in value]


def _memory(model: Model, header: GGUFHeader) -> str:
    if model.is_hybrid:
        return "hybrid"
    if model.is_recurrent:
        return "recurrent"
    return "sliding window" if header.key("attention.sliding_window") else "attention"


def _vocabulary(vocab: Vocab) -> dict[str, Any]:
    return {
        "type": vocab.type,
        "n_tokens": vocab.n_tokens,
        "add_bos": vocab.add_bos,
        "add_eos": vocab.add_eos,
        "bos": vocab.bos,
        "eos": vocab.eos,
        "eog": {str(token): vocab.text(token) for token in vocab.eog_tokens},
    }


def _draft_vocabulary(vocab: Vocab, header: GGUFHeader) -> dict[str, Any] | None:
    """The list of tokens worth drafting that comes with the package for this tokenizer, and memory for its head."""
    shipped = shipped_list(vocab, vocab)
    if shipped is None:
        return None
    n_tokens = len(shipped.tokens.ids)
    return {"name": shipped.name, "n_tokens": n_tokens, "head_bytes": head_bytes(header, n_tokens)}


def _registered_drafts(vocab: Vocab, size: int) -> list[str]:
    """Registered models that could draft for this one: the same vocabulary, and a smaller file."""
    listed = models.list_models()
    fits = set()
    for info in listed:
        if info.name == info.base and info.state == "ready":
            with Model(info.path, vocab_only=True) as candidate:
                try:
                    check_vocabulary(vocab, candidate.vocab)
                except VocabMismatch:
                    continue
            fits.add(info.base)
    return [info.name for info in listed if info.base in fits and info.size < size]


def _pair(target: str, vocab: Vocab, draft: str) -> dict[str, Any]:
    kind = detect_draft(draft)
    pair: dict[str, Any] = {"path": draft, "kind": kind, "compatible": True, "reason": None}
    try:
        if kind == DRAFT_SIMPLE:
            with Model(draft, vocab_only=True) as model:
                check_vocabulary(vocab, model.vocab)
        else:
            # Weights are mapped, not read.
            options: dict[str, Any] = {"n_gpu_layers": 0, "use_extra_bufts": False}
            with Model(target, **options) as whole, Model(draft, load_mtp=kind == "draft-mtp", **options) as model:
                CHECKS[kind](whole, model)
    except (VocabMismatch, UnsupportedModel, ModelLoadError) as error:
        pair |= {"compatible": False, "reason": str(error)}
    return pair


# What people see

_MEMORY = {
    "attention": "attention; rejected tokens are cut off its end",
    "sliding window": "attention, sliding window of {window} tokens; rejected tokens are cut off its end",
    "recurrent": "recurrent state; rejected tokens need a checkpoint",
    "hybrid": "attention and recurrent state; rejected tokens need a checkpoint",
}


def _model_rows(info: dict[str, Any]) -> list[tuple[str, Any]]:
    vocab, template, trained = info["vocab"], info["chat_template"], info["n_ctx_train"]
    bos = ", starts with BOS" if vocab["add_bos"] else ""
    total = sum(info["weights"].values()) or 1
    shares = [f"{kind} {size / total:.0%}" for kind, size in info["weights"].items() if size / total >= 0.005]
    heads = f"{info['n_head']}, {info['n_head_kv']} for keys and values"
    if isinstance(info["n_head"], list) or isinstance(info["n_head_kv"], list):
        heads = "different from layer to layer"
    ends = ", ".join(f"{text!r}" for text in vocab["eog"].values()) or "none"
    rows = [
        ("file", info["path"]),
        ("name", info["name"] or "not given"),
        ("architecture", info["architecture"]),
        ("size", f"{info['size'] / 1e6:,.1f} MB, {info['n_params'] / 1e6:,.1f} million parameters"),
        ("weights", ", ".join(shares) or "none (a vocabulary only)"),
        ("context", "not given" if trained is None else f"{trained:,} tokens in training"),
        ("layers", f"{info['n_layer']}, {info['n_embd']} wide"),
        ("heads", heads),
        ("NextN layers", _nextn(info)),
        *([("drafts as", _draft(info))] if info["drafts_as"] != DRAFT_SIMPLE else []),
        ("memory", _MEMORY[info["memory"]].format(window=info["sliding_window"])),
        ("vocabulary", f"{vocab['n_tokens']:,} tokens, {vocab['type']}{bos}"),
        ("ends with", ends),
        ("draft vocabulary", _draft_vocabulary_row(info["draft_vocabulary"])),
        ("chat template", f"yes, {len(template):,} characters (use --chat)" if template else "none"),
        ("registered drafts", ", ".join(info["registered_drafts"]) or "none fits, or is there"),
    ]
    if (pair := info.get("draft")) is not None:
        agree = "vocabularies" if pair["kind"] == DRAFT_SIMPLE else "layers, widths and vocabularies"
        verdict = Text(f"can draft for it: the {agree} agree", style="green")
        if not pair["compatible"]:
            verdict = Text(pair["reason"], style="red")
        rows += [("draft", pair["path"]), ("", verdict)]
    return rows


def _draft_vocabulary_row(found: dict[str, Any] | None) -> str:
    if found is None:
        return "no list comes for this tokenizer"
    size = found["head_bytes"]
    head = "" if size is None else f"; as a draft its output head takes {size / 1e6:,.1f} MB more"
    return f"a list of {found['n_tokens']:,} tokens comes for it ({found['name']}){head}"


def _nextn(info: dict[str, Any]) -> str:
    if not info["n_layer_nextn"]:
        return "none"
    use = "they draft (draft-mtp)" if info["drafts_as"] == "draft-mtp" else "this llama.cpp can't draft with them"
    return f"{info['n_layer_nextn']}; {use}"


def _draft(info: dict[str, Any]) -> str:
    if (reads := info["reads"]) is None:
        return f"{info['drafts_as']}, for itself or another model of its kind"
    layers = ", ".join(map(str, reads["layers"]))
    blocks = f", in blocks of {reads['block_size']}" if reads["block_size"] else ""
    return f"{info['drafts_as']}{blocks}; reads the inputs of layers {layers} of a target {reads['width']} wide"


def _build_rows(info: dict[str, Any]) -> list[tuple[str, Any]]:
    features = re.findall(r"(\w+) = 1\b", info["cpu_features"])
    rows = [
        ("pyspec", info["version"]),
        ("llama.cpp", f"{info['llama_version']} ({info['llama_commit']})"),
        ("built", f"{info['build_type']}, {info['compiler']}, for {info['system']}"),
        ("CMAKE_ARGS", info["cmake_args"] or "none"),
        ("ggml options", ", ".join(info["ggml_options"]) or "none"),
        ("matrix products", _matrix_products(info["llamafile"])),
        ("backends", ", ".join(info["backends"])),
        ("CPU features", ", ".join(features) or "none"),
    ]
    for device in info["devices"]:
        memory = f", {device['memory_total'] / 2**30:.1f} GiB" if device["memory_total"] else ""
        rows.append((f"device {device['name']}", f"{device['description']} ({device['type']}{memory})"))
    return rows


def _matrix_products(llamafile: bool) -> str:
    """Whether a row of a batch can be, to the bit, the row alone, with weights that are not quantized."""
    if llamafile:
        return (
            "llamafile's from two rows on: F32 and F16 weights are rounded otherwise in a batch than alone "
            "(PYSPEC_LLAMAFILE=0 does without)"
        )
    return "ggml's own, row by row (without llamafile's)"


def _print(rows: list[tuple[str, Any]]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value if isinstance(value, Text) else Text(str(value)))
    output_console().print(table)
