"""Trains draft models for SmolLM2-135M-Instruct on what it writes: docs/trained-drafts.md."""
