"""Training: steps, a rate that falls, a checkpoint to go on from, a bar with the loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.train.batches import Batch, Batches
from tools.train.progress import Bar

SAVE_SECONDS = 30.0
WARM_UP = 30  # steps
SMOOTHING = 0.97

Loss = Callable[[Batch], tuple[Tensor, dict[str, float]]]


def train(
    module: nn.Module, loss_of: Loss, batches: Batches, *, epochs: int, rate: float, checkpoint: Path, title: str
) -> None:
    """Trains until the epochs are done, from the checkpoint on if there is one.

    Args:
        module: what is trained; its parameters are changed.
        loss_of: a batch to a loss and numbers worth showing.
        batches: what it learns from.
        epochs: how often it sees each text.
        rate: highest learning rate (AdamW); it rises for WARM_UP steps and falls as a cosine to a twentieth.
        checkpoint: a file, written every SAVE_SECONDS and at the end; a run with more epochs goes on from it, too.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    if checkpoint.exists():
        step = _load(checkpoint, module, optimizer)
    else:
        step = 0
        _save(checkpoint, module, optimizer, step)
    total = epochs * len(batches)
    smooth: dict[str, float] = {}
    saved = time.monotonic()
    with Bar(title, total, min(step, total)) as bar:
        while step < total:
            for batch in batches.epoch(step // len(batches), step % len(batches)):
                for group in optimizer.param_groups:
                    group["lr"] = rate * _share(step, total)
                with torch.autocast("cpu", torch.bfloat16):
                    loss, numbers = loss_of(batch)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                step += 1
                for name, value in {"loss": float(loss.detach()), **numbers}.items():
                    smooth[name] = SMOOTHING * smooth.get(name, value) + (1 - SMOOTHING) * value
                bar.advance(**smooth)
                if time.monotonic() - saved > SAVE_SECONDS:
                    _save(checkpoint, module, optimizer, step)
                    saved = time.monotonic()
    _save(checkpoint, module, optimizer, step)


@torch.no_grad()
def evaluate(loss_of: Loss, batches: Batches) -> dict[str, float]:
    """Means of the loss and the numbers over all batches."""
    sums: dict[str, float] = {}
    for batch in batches.epoch(0):
        loss, numbers = loss_of(batch)
        for name, value in {"loss": float(loss), **numbers}.items():
            sums[name] = sums.get(name, 0.0) + value / len(batches)
    return sums


def saved(checkpoint: Path) -> dict[str, Tensor]:
    """The weights and other tensors of a checkpoint, by name."""
    module: dict[str, Tensor] = torch.load(checkpoint, weights_only=True)["module"]
    return module


def _share(step: int, total: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))


def _save(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temporary)
    temporary.replace(path)


def _load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    saved = torch.load(path, weights_only=True)
    for name, buffer in module.named_buffers():
        if name in saved["module"] and not torch.equal(buffer, saved["module"][name]):
            raise SystemExit(f"{path} was trained with other texts ({name} is another): remove it to begin anew")
    module.load_state_dict(saved["module"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])
