"""The lists of tokens worth drafting that come with the package: which of them is for a model.

They are in ``data/``, files as `vocab_list` reads them. docs/draft-vocabulary.md says how they were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspec.speculation.vocab_list import VocabList, read_header, read_list, tokenizer_hash

if TYPE_CHECKING:
    from pyspec._llama import Vocab

FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class ShippedList:
    """A list that comes with the package.

    Attributes:
        name: of the model it was made for, as ``pyspec models list`` has it.
        tokens: what is in it.
    """

    name: str
    tokens: VocabList


def shipped_list(draft: Vocab, target: Vocab) -> ShippedList | None:
    """The list for a draft model, if its tokenizer is one of those that lists come for."""
    own_hash: str | None = None
    for path in sorted(FOLDER.glob("*.txt")):
        header = read_header(path)
        if header.get("vocabulary") != str(draft.n_tokens):
            continue  # a hash takes a while
        own_hash = own_hash or tokenizer_hash(draft)
        if header.get("tokenizer") == own_hash:
            return ShippedList(path.stem, read_list(path, draft, target))
    return None
