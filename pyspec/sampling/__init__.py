"""Sampling: the parameters of a request, and the libllama sampler chain they stand for."""

from pyspec.sampling.guidance import Grammars
from pyspec.sampling.params import SamplingParams
from pyspec.sampling.plan import DryCache, SamplerPlan, build_chain

__all__ = ["DryCache", "Grammars", "SamplerPlan", "SamplingParams", "build_chain"]
