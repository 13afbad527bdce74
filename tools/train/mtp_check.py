"""Whether the file of tiny-mtp computes what was trained, and what its drafts are worth; see mtp_train.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyspec import DraftMTP, Engine, SamplingParams
from pyspec._llama import Batch, Context, Model
from tools.train.mtp_model import TinyMTP
from tools.train.mtp_text import BOS

N_TOKENS = 192  # of a text that is looked at
POSITIONS = (7, 30, 100, 180)  # where drafts of several layers are compared
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1}

PROMPT, ANSWER = 32, 128  # tokens
N_PROMPTS = 60


def _tokens(model: Model, texts: Sequence[str], n: int, n_texts: int) -> list[list[int]]:
    """Beginnings of the first texts that are as long."""
    tokenized = ([BOS, *model.vocab.tokenize(text, add_special=False)] for text in texts)
    long = [tokens[:n] for tokens in tokenized if len(tokens) >= n]
    return long[:n_texts]


def differences(model: TinyMTP, path: Path, texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """How far a file's logits are from the model's, on texts, for the trunk and each NextN layer.

    Returns:
        By "trunk", "head 0", ...: the largest absolute difference, the spread of the logits to hold it against, and the
        share of positions with the same best token.
    """
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    with Model(path, load_mtp=True) as file:
        target = Context(file, n_ctx=256, n_outputs_max=N_TOKENS, **EXACT)
        draft = Context(file, n_ctx=256, n_outputs_max=N_TOKENS, ctx_type="mtp", **EXACT)
        with target, draft:
            target.set_embeddings_nextn(True)
            draft.set_embeddings_nextn(True, masked=True)
            for tokens in _tokens(file, texts, N_TOKENS, 4):
                with torch.no_grad():
                    states = model.states(torch.tensor([tokens]))
                    expected = [model.logits(state)[0].numpy() for state in states]
                target.memory.clear()
                target.decode(tokens, outputs=True)
                n = len(tokens)
                rows = np.array([target.logits(i) for i in range(n)])
                found.setdefault("trunk", []).append((rows, expected[0]))
                hidden = np.array([target.embeddings_nextn(i) for i in range(n)])
                before = np.concatenate((np.zeros((1, hidden.shape[1]), np.float32), hidden[:-1]))
                rows, _ = _run(draft, 0, tokens, before, range(n))
                found.setdefault("head 0", []).append((rows, expected[1]))
                for start in POSITIONS:
                    drafted = before[: start + 1]
                    for head in range(file.n_layer_nextn):
                        last = start + head
                        row, state = _run(draft, head, tokens[: last + 1], drafted, [last])
                        found.setdefault(f"head {head}", []).append((row, expected[head + 1][last : last + 1]))
                        drafted = np.concatenate((drafted, state))
    return {
        name: {
            "largest": max(float(np.abs(a - b).max()) for a, b in pairs),
            "spread": float(np.concatenate([b for _, b in pairs]).std()),
            "same best": float(np.mean(np.concatenate([a.argmax(1) == b.argmax(1) for a, b in pairs]))),
        }
        for name, pairs in found.items()
    }


def _run(
    draft: Context, head: int, tokens: Sequence[int], before: np.ndarray, outputs: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden states of a NextN layer, for tokens with the hidden states before them."""
    draft.memory.clear()
    draft.set_nextn_layer_offset(head)
    batch = Batch(draft)
    for i, token in enumerate(tokens):
        batch.add(token, i, 0, i in outputs)
        batch.set_embd_token(i, before[i])
    draft.process(batch)
    return np.array([draft.logits(i) for i in outputs]), np.array([draft.embeddings_nextn(i) for i in outputs])


def agreement(model: TinyMTP, path: Path, texts: Sequence[str]) -> list[float]:
    """For each NextN layer: how often its best token is the trunk's, on texts as they are, wherever it and those before
    it would draft."""
    with Model(path, vocab_only=True) as file:
        rows = torch.tensor(_tokens(file, texts, N_TOKENS, 100))
    with torch.no_grad():
        best = [model.logits(state).argmax(-1) for state in model.states(rows)]
    return [float((layer[:, PROMPT:] == best[0][:, PROMPT:]).float().mean()) for layer in best[1:]]


def acceptance(path: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """What is accepted when the model goes on with beginnings of texts, by kind of sampling and drafted tokens."""
    found = []
    with Model(path, vocab_only=True) as file:
        prompts = _tokens(file, texts, PROMPT, N_PROMPTS)
    for n_max in (1, 2, 3):
        with Engine(path, speculation=DraftMTP(n_max=n_max), n_threads=1) as engine:
            for temperature in (0.0, 0.7):
                results = [
                    engine.generate(p, SamplingParams(temperature=temperature, seed=i, max_tokens=ANSWER))
                    for i, p in enumerate(prompts)
                ]
                rounds = sum(result.stats.rounds for result in results)
                drafted = sum(result.stats.drafted for result in results)
                accepted = sum(result.stats.accepted for result in results)
                found.append(
                    {
                        "n_max": n_max,
                        "temperature": temperature,
                        "tokens": sum(len(result.token_ids) for result in results),
                        "accepted per round": round(accepted / rounds, 3),
                        "accepted of drafted": round(accepted / drafted, 3),
                    }
                )
    return found
