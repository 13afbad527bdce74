"""Running llama.cpp's own `llama-speculative-simple`, from the same tree, and reading its numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "build" / "llama-speculative-simple"


@dataclass(frozen=True)
class ExampleRun:
    """What one run of the example said: tokens after the prompt and the seconds they took, and the prompt's seconds."""

    n_tokens: int
    prompt_s: float
    generation_s: float
    drafted: int
    accepted: int

    @property
    def rounds(self) -> int:
        """Decodes of the target after the prompt."""
        return self.n_tokens - self.accepted


def require_example() -> None:
    """Ends the program with a word on what to do if the example is not built."""
    if not EXAMPLE.exists():
        sys.exit(f"{EXAMPLE.relative_to(ROOT)} is missing; build it with `make example`")


def run_example(
    target: Path, prompt_file: Path, n_tokens: int, n_threads: int, speculation: list[str], *, n_ctx: int = 1024
) -> ExampleRun:
    """Greedy, n_tokens or a few more, on past the end of the text.

    Args:
        speculation: its options that say who drafts, and how.
    """
    command = [
        str(EXAMPLE), "-m", str(target), "-f", str(prompt_file), "-n", str(n_tokens), "-c", str(n_ctx), "--temp", "0",
        "--ignore-eos", "-t", str(n_threads), "-td", str(n_threads), *speculation,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"llama.cpp's example failed ({done.returncode}):\n{output[-2000:]}")

    def number(pattern: str, group: int = 1) -> float:
        found = re.search(pattern, output)
        if found is None:
            sys.exit(f"no {pattern!r} in the output of llama.cpp's example:\n{output[-2000:]}")
        return float(found.group(group))

    decoded = r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds"
    return ExampleRun(
        n_tokens=int(number(decoded)),
        prompt_s=number(r"encoded\s+\d+ tokens in\s+([\d.]+) seconds"),
        generation_s=number(decoded, 2),
        drafted=int(number(r"n_drafted\s+= (\d+)")),
        accepted=int(number(r"n_accept\s+= (\d+)")),
    )
