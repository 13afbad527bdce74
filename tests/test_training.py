"""tools/train, where PyTorch is installed: what it writes is what libllama computes."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_libllama_computes_what_was_trained(smollm2_f32: Path, tmp_path: Path) -> None:
    """With random weights, which are farther from zero and one than trained ones, in 32-bit floats."""
    torch = pytest.importorskip("torch")
    from tools.train import plain
    from tools.train.check import eagle3_difference, plain_difference
    from tools.train.collect import Text
    from tools.train.eagle3 import Eagle3, Shape
    from tools.train.files import write_eagle3, write_plain
    from tools.train.states import Reader
    from tools.train.target import read_target

    torch.manual_seed(1)
    target = read_target(smollm2_f32)
    layers = (1, 10, 20)
    reader = Reader(str(smollm2_f32), layers, 1)
    vocab = reader.model.vocab
    text = reader.read(Text(vocab.tokenize("What is tea?"), vocab.tokenize("Tea is a drink made of leaves.")))
    head = Eagle3(Shape(), target, list(range(5, 805, 2)), torch.eye(3 * 576) / 2 + 0.01)
    small = plain.Plain(plain.Shape(), target, torch.ones(49152), list(range(100, 900)))
    for module in (head, small):
        for parameter in module.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    write_eagle3(tmp_path / "eagle3.gguf", head, layers=list(layers), target=smollm2_f32, quantized=False)
    write_plain(tmp_path / "draft.gguf", small, target=smollm2_f32, quantized=False)
    assert 0 < eagle3_difference(tmp_path / "eagle3.gguf", head, text, reader) < 1e-3
    assert 0 < plain_difference(tmp_path / "draft.gguf", small, text) < 1e-3
    reader.close()
