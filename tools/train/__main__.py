"""python -m tools.train collect | eagle3 | draft | measure, from the repository's root; needs the extra `train`.

    python -m tools.train eagle3                  # texts, hidden states, training, the file, its acceptance
    python -m tools.train measure build/train/smollm2-eagle3.gguf

Everything is kept in build/train/ and gone on with: texts, states, checkpoints. docs/trained-drafts.md has the recipe.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from pyspec import models
from pyspec.bench.kinds import KINDS
from tools.train import plain
from tools.train.batches import Batches
from tools.train.check import eagle3_difference, plain_difference
from tools.train.collect import Text, collect
from tools.train.eagle3 import Eagle3, Shape
from tools.train.files import write_eagle3, write_plain
from tools.train.loop import evaluate, saved, train
from tools.train.measure import measure
from tools.train.start import start, whitening
from tools.train.start_plain import start_plain
from tools.train.states import Reader, States, states
from tools.train.target import read_target

WORK = Path(__file__).resolve().parents[2] / "build" / "train"
LAYERS = (2, 15, 29)  # of 30; the last one's input is what the target is nearest to say
TEXTS = "1:84,2:400"
N_HELD = 48  # of these, the last ones, are not trained on
N_START = 600  # least squares are done on about so many
LARGEST_DIFFERENCE = 1e-3


def texts_of(args: argparse.Namespace) -> dict[int, list[Text]]:
    return {
        seed: collect(WORK / f"texts-{seed}.jsonl", target=args.writer, n_texts=number, seed=seed,
                      n_threads=args.threads)
        for seed, number in args.texts.items()
    }  # fmt: skip


def states_of(args: argparse.Namespace) -> tuple[list[States], list[States]]:
    """What is trained on, and what is held out, with the prompts of none of the others: every second is greedy."""
    read = [
        states(WORK / f"states-{seed}", texts, target=args.reader or args.target, layers=LAYERS, n_threads=args.threads)
        for seed, texts in texts_of(args).items()
    ]
    every = [text for part in read for text in part]
    n_held = min(N_HELD, len(every) // 8)
    held = every[-n_held:]
    prompts = {text.tokens[: text.n_prompt].tobytes() for text in held}
    return [text for text in every[:-n_held] if text.tokens[: text.n_prompt].tobytes() not in prompts], held


def counted(texts: list[States], n_vocab: int) -> npt.NDArray[np.int64]:
    """How often each token is the one that the target likes best."""
    counts = np.zeros(n_vocab, np.int64)
    for text in texts:
        np.add.at(counts, text.best[text.n_prompt - 1 :], 1)
    return counts


def commonest(counts: npt.NDArray[np.int64], size: int) -> list[int]:
    """The ids the target wrote most often, in order of id; the smallest ones of those it never wrote, to fill up."""
    return sorted(np.argsort(-counts, kind="stable")[:size].tolist())


def fit(
    model: Eagle3 | plain.Plain,
    begin: Callable[[], None],
    learned: list[States],
    held: list[States],
    args: argparse.Namespace,
    *,
    checkpoint: Path,
    title: str,
) -> None:
    """Trains from what `begin` finds, or goes on from a checkpoint; says how the texts held out fare."""
    if not checkpoint.exists():
        begin()
        print("at the start:", shown(evaluate(model.loss, Batches(held, args.rows, 0))), flush=True)
    train(model, model.loss, Batches(learned, args.rows, args.seed), epochs=args.epochs, rate=args.rate,
          checkpoint=checkpoint, title=title)  # fmt: skip
    print("held out:", shown(evaluate(model.loss, Batches(held, args.rows, 0))), flush=True)


def make_eagle3(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    learned, held = states_of(args)
    path = models.resolve(args.target)
    target = read_target(path)
    checkpoint = WORK / "eagle3.pt"
    first = learned[:: -(-len(learned) // N_START)]
    if checkpoint.exists():  # more texts change neither what can be drafted nor what fc stands for
        kept = saved(checkpoint)
        head = Eagle3(Shape(), target, kept["drafted"].tolist(), kept["whitening"])
    else:
        drafted = commonest(counted(learned, len(target.embeddings)), args.vocabulary)
        head = Eagle3(Shape(), target, drafted, whitening(first))
    fit(head, partial(start, head, target, first), learned, held, args, checkpoint=checkpoint, title="EAGLE-3")
    exact, final = WORK / "smollm2-eagle3.f32.gguf", WORK / "smollm2-eagle3.gguf"
    for file, quantized in ((exact, False), (final, True)):
        write_eagle3(file, head, layers=list(LAYERS), target=path, quantized=quantized)
    reader = Reader(args.target, LAYERS, args.threads)
    checked(exact, final, lambda file: eagle3_difference(file, head, held[0], reader))
    reader.close()
    show(final, args)


def make_draft(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    learned, held = states_of(args)
    path = models.resolve(args.target)
    target = read_target(path)
    counts = counted(learned, len(target.embeddings))
    draft = plain.Plain(plain.Shape(), target, torch.from_numpy(counts), commonest(counts, args.vocabulary))
    fit(draft, partial(start_plain, draft, learned), learned, held, args, checkpoint=WORK / "draft.pt",
        title="plain draft")  # fmt: skip
    exact, final = WORK / "smollm2-draft.f32.gguf", WORK / "smollm2-draft.gguf"
    for file, quantized in ((exact, False), (final, True)):
        write_plain(file, draft, target=path, quantized=quantized)
    checked(exact, final, lambda file: plain_difference(file, draft, held[0]))
    show(final, args)


def checked(exact: Path, final: Path, difference_of: Callable[[Path], float]) -> None:
    """Says how the files compute; ends where the exact one does not compute what was trained."""
    for file in (final, exact):
        size, value = file.stat().st_size / 1e6, difference_of(file)
        print(f"{file.name}: {size:.1f} MB, logits differ by {value:.2g} of their spread", flush=True)
    if not value < LARGEST_DIFFERENCE:
        raise SystemExit(f"{exact} does not compute what was trained")


def show(path: Path, args: argparse.Namespace) -> None:
    table = Table("kind", "rounds", "drafted", "accepted", "a round")
    for kind, found in measure(path, target=args.target, n_threads=args.threads, kinds=args.kinds).items():
        table.add_row(kind, str(found.rounds), str(found.drafted), str(found.accepted), f"{found.mean:.2f}")
    Console().print(table)


def numbers(text: str) -> dict[int, int]:
    """Of "1:80,2:400": how many texts by seed."""
    return {int(seed): int(number) for seed, _, number in (part.partition(":") for part in text.split(","))}


def shown(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in numbers.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=["collect", "eagle3", "draft", "measure"])
    parser.add_argument("file", nargs="?", type=Path, help="measure: a draft for SmolLM2")
    parser.add_argument("--texts", type=numbers, default=TEXTS, metavar="SEED:NUMBER,...",
                        help="texts by the seed of their requests; each seed's are a file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the order of texts (default: 1)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1024, help="tokens of a batch (default: 1024)")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (default: 1e-4)")
    parser.add_argument("--vocabulary", type=int, default=6144, help="tokens that are drafted (default: 6144)")
    parser.add_argument("--writer", default="smollm2-q4_0", help="model that writes the texts (default: smollm2-q4_0)")
    parser.add_argument("--target", default="smollm2-f32", help="model that is drafted for (default: smollm2-f32)")
    parser.add_argument("--reader", metavar="FILE", help="model whose hidden states are read: the target's, or nearly, "
                        "in another number format, where that is faster (default: --target)")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS,
                        help=f"of prompts to measure on, of {','.join(KINDS)}")  # fmt: skip
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.what == "measure":
        show(args.file, args)
    elif args.what == "collect":
        texts_of(args)
    else:
        (make_eagle3 if args.what == "eagle3" else make_draft)(args)


if __name__ == "__main__":
    main()
