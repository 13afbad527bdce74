"""Ten prompts of different kinds: prose, lists, code, dialogue, a table, a rewrite.

The same ones everywhere, so that figures of different runs can be compared.
"""

from __future__ import annotations

REQUESTS = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how a bicycle stays upright, for a ten-year-old.",
    "List ten things to pack for a week of hiking in the mountains, with a reason for each.",
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "Summarise the advantages and disadvantages of living in a big city.",
    "Write a polite e-mail that asks a landlord to repair a leaking tap.",
    "Give step-by-step instructions for making a vegetable soup.",
    "Describe the water cycle in simple words.",
    "Repeat this sentence ten times: The quick brown fox jumps over the lazy dog.",
    "What are the planets of the solar system? Say one interesting thing about each.",
)

OPENINGS = (
    "The lighthouse keeper had not spoken to anyone for three weeks when he found the bottle. Inside it",
    "A bicycle stays upright because",
    "Ten things to pack for a week of hiking in the mountains:\n\n1.",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Living in a big city has advantages and disadvantages. On the one hand,",
    "Dear Mr Miller,\n\nI am writing to you because the tap in the kitchen",
    "How to make a vegetable soup. First,",
    "The water cycle describes how water moves",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick",
    "The planets of the solar system are Mercury, Venus, Earth,",
)


def chatml(request: str) -> str:
    """The request as a ChatML dialogue that waits for the assistant (SmolLM2-Instruct's format)."""
    return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"


def prompts_for(chat: bool) -> list[str]:
    """The ten prompts for an instruction-tuned model (as ChatML), or for a base model (as openings of texts)."""
    return [chatml(request) for request in REQUESTS] if chat else list(OPENINGS)
