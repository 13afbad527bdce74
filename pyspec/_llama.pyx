"""The binding: libllama's objects as Python objects, one C call a method, under the C names.

What it adds to the calls: every return code and C++ exception becomes one of :mod:`pyspec.errors`, everything
libllama would end the process for is refused first, the GIL is released around work, objects can be closed in
any order, and zero-copy results cannot be overwritten while somebody looks at them. There is no policy here.

The parts, each in binding/: checks of arguments; library (versions, devices, logging); model, vocab, chat and
quantize; context with its parameters, batch, memory, results and state; samplers.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cpp_bool
from libcpp.atomic cimport atomic
from libcpp.string cimport string
from libcpp.vector cimport vector

from pyspec.libllama cimport *

import atexit
import contextlib
import logging
import math
import operator
import os
import struct
import tempfile
import threading
import time
import weakref
import zlib

import numpy as np

from pyspec.errors import (
    BufferInUse,
    Busy,
    Cancelled,
    Closed,
    ContextError,
    DecodeError,
    GrammarError,
    InvalidRequest,
    ModelLoadError,
    PyspecError,
    StateError,
    UnsupportedModel,
)
from pyspec.gguf_header import read_gguf
from pyspec.machine import default_threads, total_memory
from pyspec.state_pools import with_pools
from pyspec.whole_file import whole_file

include "binding/checks.pxi"
include "binding/library.pxi"
include "binding/architectures.pxi"
include "binding/model.pxi"
include "binding/vocab.pxi"
include "binding/chat.pxi"
include "binding/quantize.pxi"
include "binding/context_params.pxi"
include "binding/decode.pxi"
include "binding/context.pxi"
include "binding/results.pxi"
include "binding/batch.pxi"
include "binding/memory.pxi"
include "binding/state.pxi"
include "binding/sampler.pxi"
include "binding/sampler_kinds.pxi"
include "binding/sampler_chain.pxi"
