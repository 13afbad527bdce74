"""Measurements a user can run: is it the same text, and is it faster?

``pyspec bench`` (or ``python -m pyspec.bench``) measures speed by kind of prompt, ``python -m pyspec.bench.lossless``
looks for differences.
"""
