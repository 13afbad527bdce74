"""llama.cpp's server as a process of its own, and a client that streams completions from it.

The client is asyncio's streams and nothing else: HTTP/1.1, a connection for each request, server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


class ServerFailed(Exception):
    """The server did not start, or refused a request."""


class LlamaServer:
    """A running llama-server.

    Args:
        program: the file.
        arguments: its arguments, but for host and port.
        timeout: seconds it may take to load its models.
    """

    def __init__(self, program: Path, arguments: Sequence[str], *, timeout: float = 120.0) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self._port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [str(program), *arguments, "--host", HOST, "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._wait(time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    async def stream(self, prompt: str, n_tokens: int) -> AsyncIterator[bytes]:
        """The events of a greedy completion of exactly so many tokens, as they arrive."""
        body = {
            "prompt": prompt, "n_predict": n_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
        }  # fmt: skip
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(_request("POST", "/completion", json.dumps(body).encode()))
            status, headers = await _head(reader)
            if status != 200:
                raise ServerFailed(f"llama-server answers {status}: {await reader.read(2000)!r}")
            buffer = b""
            async for piece in _body(reader, headers):
                *events, buffer = (buffer + piece).split(b"\n\n")
                for event in events:
                    yield event.removeprefix(b"data: ")
        finally:
            writer.close()

    @staticmethod
    def finish(events: list[bytes]) -> dict[str, Any]:
        """What the events of a completion amount to."""
        parts = [json.loads(event) for event in events if event != b"[DONE]"]
        if not parts or not parts[-1].get("stop"):
            raise ServerFailed(f"a completion ended early: {parts[-1] if parts else 'no event'}")
        timings = parts[-1]["timings"]
        return {
            "n_tokens": parts[-1]["tokens_predicted"],
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
            "text": "".join(part["content"] for part in parts),
        }

    def log(self, size: int = 3000) -> str:
        """The end of what it has written to the terminal."""
        self._log.seek(0)
        return self._log.read()[-size:].decode(errors="replace")

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self, deadline: float) -> None:
        while asyncio.run(self._health()) != 200:
            if self._process.poll() is not None:
                raise ServerFailed(f"llama-server ended with {self._process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"llama-server is not ready yet:\n{self.log()}")
            time.sleep(0.1)

    async def _health(self) -> int:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port)
        except OSError:
            return 0
        try:
            writer.write(_request("GET", "/health", b""))
            return (await _head(reader))[0]
        except (OSError, EOFError):
            return 0
        finally:
            writer.close()


def _request(method: str, path: str, body: bytes) -> bytes:
    head = [
        f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: application/json",
        f"Content-Length: {len(body)}", "Connection: close", "", "",
    ]  # fmt: skip
    return "\r\n".join(head).encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, whose names are in lower case."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    headers = dict(line.split(":", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, value in headers.items()}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body, piece by piece, as it comes."""
    if headers.get("transfer-encoding") != "chunked":
        while piece := await reader.read(1 << 16):
            yield piece
        return
    while size := int((await reader.readline()).split(b";")[0], 16):
        piece = await reader.readexactly(size + 2)
        yield piece[:-2]
