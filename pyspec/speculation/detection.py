"""What kind of draft a GGUF file is, from its header alone."""

from __future__ import annotations

import os

from pyspec.gguf_header import GGUFHeader, read_gguf

# The kind that reads tokens; the others read the target's hidden states.
DRAFT_SIMPLE = "draft-simple"


def detect_draft(path: str | os.PathLike[str]) -> str:
    """The speculator a draft file is made for, by llama.cpp's names.

    Returns:
        "draft-dflash" or "draft-dspark" (which has a Markov head), "draft-eagle3", "draft-mtp" (NextN layers of a
        model, in a file of their own or with it), or "draft-simple": any other model.

    Raises:
        ModelLoadError: the file is missing, damaged or no GGUF.
    """
    header = read_gguf(path)
    if header.arch == "dflash":
        return "draft-dspark" if "markov_w1.weight" in header.tensors else "draft-dflash"
    if header.arch == "eagle3":
        return "draft-eagle3"
    return "draft-mtp" if has_nextn_layer(header) else DRAFT_SIMPLE


def has_nextn_layer(header: GGUFHeader) -> bool:
    """Whether the last block projects (embedding, hidden state) pairs, as NextN layers do."""
    n_blocks = header.key("block_count")
    return isinstance(n_blocks, int) and f"blk.{n_blocks - 1}.nextn.eh_proj.weight" in header.tensors
