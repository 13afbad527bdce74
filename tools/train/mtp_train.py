#!/usr/bin/env python3
"""Trains tiny-mtp, the small model with three NextN layers that comes with the package, from nothing.

    pip install torch gguf tqdm                   # the extra `train`
    python -m tools.train.mtp_train               # all of it, or on from where it was stopped
    python -m tools.train.mtp_train --only check  # the file again, what it computes, what it accepts

Everything is kept in build/train/mtp/. What is trained is an architecture libllama knows (step35, with dense layers),
small enough for a minute's CPU time to matter: see mtp_model.py for what it computes, mtp_text.py for its text. The
trunk learns the next token. Each NextN layer learns what the trunk says at the same position, its whole distribution,
as a draft is accepted where it says what the trunk will say (Hinton et al., "Distilling the Knowledge in a Neural
Network", 2015): first while the trunk learns, then from a trunk that stays as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from pyspec._llama import Model, quantize
from tools.train import mtp_check, mtp_text
from tools.train.mtp_file import write_model, write_vocabulary
from tools.train.mtp_model import Shape, TinyMTP

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "train" / "mtp"
SHIPPED = ROOT / "pyspec" / "models" / "data" / "tiny-mtp.gguf"

SEED = 1
STEPS, NEXTN_STEPS = 560, 240  # of all of it, then of the NextN layers alone
ROWS = 2048  # tokens of a step
LENGTHS = (256, 512)  # of a sequence, and from the last third of the first part on
RATE, WARM_UP, DECAY, CLIP = 4e-3, 50, 0.05, 1.0
SHARE_OF_NEXTN = 0.5  # of each NextN layer's loss
SAVE_EVERY = 25


def prepare(shape: Shape) -> tuple[list[str], np.ndarray]:
    """The vocabulary's pieces, and the tokens of all training texts, one after the other in a random order."""
    made = WORK / "pieces.json", WORK / "tokens.npy"
    if not all(path.exists() for path in made):
        WORK.mkdir(parents=True, exist_ok=True)
        texts = mtp_text.documents(held_out=False)
        pieces = mtp_text.pieces(texts, shape.n_vocab - mtp_text.N_FIXED)
        write_vocabulary(WORK / "vocabulary.gguf", pieces)
        random.Random(SEED).shuffle(texts)
        with Model(WORK / "vocabulary.gguf", vocab_only=True) as model:
            tokens = [
                token
                for text in texts
                for token in (mtp_text.BOS, *model.vocab.tokenize(text, add_special=False), mtp_text.EOS)
            ]
        n_characters = sum(map(len, texts))
        print(f"{len(texts)} texts, {n_characters} characters, {len(tokens)} tokens")
        np.save(made[1], np.array(tokens, np.int16))
        made[0].write_text(json.dumps(pieces))
    return json.loads(made[0].read_text()), np.load(made[1])


def held_out() -> list[str]:
    """The texts to test with, in a random order."""
    path = WORK / "held-out.json"
    if not path.exists():
        texts = mtp_text.documents(held_out=True)
        random.Random(SEED).shuffle(texts)
        path.write_text(json.dumps(texts))
    found: list[str] = json.loads(path.read_text())
    return found


def batch(tokens: np.ndarray, step: int) -> Tensor:
    """The sequences of a step; the same for the same step."""
    length = LENGTHS[3 * step >= 2 * STEPS]
    starts = np.random.default_rng((SEED, step)).integers(0, len(tokens) - length - 1, ROWS // length)
    return torch.from_numpy(np.stack([tokens[i : i + length + 1] for i in starts]).astype(np.int64))


def losses(model: TinyMTP, rows: Tensor) -> list[Tensor]:
    """The trunk's loss against the text, and each NextN layer's against the trunk."""
    said = [model.logits(state) for state in model.states(rows[:, :-1])]
    wanted = rows[:, 1:].flatten()
    trunk = said[0].flatten(0, 1)
    aim = trunk.detach().softmax(-1)
    drafts = [functional.cross_entropy(logits.flatten(0, 1), aim) for logits in said[1:]]
    return [functional.cross_entropy(trunk, wanted), *drafts]


def rate(step: int) -> float:
    """The learning rate, as a share of the highest."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    if step >= STEPS:
        return 0.25 * (1 + math.cos(math.pi * (step - STEPS) / NEXTN_STEPS))
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


def train(model: TinyMTP, tokens: np.ndarray, steps: int) -> None:
    """Goes on from the last saved state, to `steps` of the whole plan."""
    saved = WORK / "state.pt"
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "token_embd" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "token_embd" in n]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, (0.9, 0.95))
    done, seconds = 0, 0.0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, seconds = state["step"], state["seconds"]
    bar = tqdm(range(done, steps), initial=done, total=steps, unit="step", mininterval=10)
    for step in bar:
        began = time.process_time()
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate(step)
        if step >= STEPS:
            model.requires_grad_(False)
            model.nextn.requires_grad_(True)
        parts = losses(model, batch(tokens, step))
        loss = SHARE_OF_NEXTN * sum(parts[1:]) + (parts[0] if step < STEPS else 0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        seconds += time.process_time() - began
        if step % 10 == 0:
            bar.set_postfix_str(" ".join(f"{part.item():.3f}" for part in parts))
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**content, "step": step + 1, "seconds": seconds}, saved.with_suffix(".part"))
            saved.with_suffix(".part").rename(saved)
    n_weights = sum(weight.numel() for weight in model.parameters())
    print(f"{steps} steps in {seconds / 60:.1f} minutes of CPU time, {n_weights} weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("text", "train", "check"), help="one part of it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS + NEXTN_STEPS, help="stop earlier, to go on another time")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("medium")  # products in bfloat16 where the processor has them
    shape = Shape()
    pieces, tokens = prepare(shape)
    if options.only == "text":
        return
    model = TinyMTP(shape)
    if options.only == "check":
        model.load_state_dict(torch.load(WORK / "state.pt")["model"])
    else:
        train(model, tokens, options.steps)
    if options.only == "train":
        return
    torch.set_float32_matmul_precision("highest")
    whole = WORK / "tiny-mtp-f32.gguf"
    write_model(whole, model.eval(), pieces)
    SHIPPED.parent.mkdir(exist_ok=True)
    quantize(whole, SHIPPED, "q8_0")
    texts = held_out()
    report = {
        "shape": asdict(shape),
        "logits": {path.name: mtp_check.differences(model, path, texts) for path in (whole, SHIPPED)},
        "agreement": mtp_check.agreement(model, SHIPPED, texts),
        "acceptance": mtp_check.acceptance(SHIPPED, texts),
    }
    (WORK / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
