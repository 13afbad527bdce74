"""Steady streams: the tokens of a round handed to the reader one by one, spread over the time until the next rounds.

A round of speculation brings several tokens at once, sometimes many, sometimes one, and takes longer than one of plain
decoding, so that a reader sees bursts. A pacer is a jitter buffer: it hands out the first token of a text at once and
from then on one at a time, at the speed with which they come, a little faster while more wait than it wants to have in
reserve and a little slower while fewer do. What it wants are some rounds' worth of tokens, so that a round that brings
one only leaves no gap; where every round brings one, as in plain decoding, it wants none. The end of a text is not held
back.
"""

from __future__ import annotations


class Pacer:
    """When a reader gets each token of one stream.

    Times are seconds of one monotonic clock. How long rounds take and how many tokens they bring are means with
    exponential forgetting.

    Attributes:
        due: the next token is to be handed out at this time, or any time later.
    """

    FORGET = 0.95  # weight of the past after one more round
    RESERVE = 2.5  # rounds of which the tokens beyond the first are to wait when one has come
    GAIN = 0.4  # change of pace while none waits, or twice what should
    LEAST = 0.5  # time between two tokens, in times of what one takes on the mean, however many wait
    LONGEST = 3.0  # rounds that a token may be held back
    EVEN = 0.2  # tokens a round beyond the first below which there is less and less to even out

    def __init__(self) -> None:
        self.due = 0.0
        self._arrival: float | None = None
        self._n_waiting_before = 0
        self._seconds = 0.0
        self._tokens = 0.0
        self._rounds = 0.0
        self._step = 0.0

    def arrived(self, n_waiting: int, now: float) -> None:
        """A round has brought tokens; with them so many wait to be handed out."""
        if self._arrival is not None:
            n_new = n_waiting - self._n_waiting_before
            self._seconds = self._seconds * self.FORGET + now - self._arrival
            self._tokens = self._tokens * self.FORGET + n_new
            self._rounds = self._rounds * self.FORGET + 1.0
        self._arrival = now
        self._n_waiting_before = n_waiting
        taken_at = self.due - self._step
        if self._rounds:
            token, round_ = self._seconds / self._tokens, self._seconds / self._rounds
            more = self._tokens / self._rounds - 1.0
            wanted = 1.0 + self.RESERVE * more
            pace = 1.0 + self.GAIN * (wanted - n_waiting) / wanted
            self._step = min(max(pace, self.LEAST) * token, self.LONGEST * round_ / n_waiting)
            self._step *= min(1.0, more / self.EVEN)
        self.due = taken_at + self._step

    def taken(self, now: float) -> None:
        """A token was handed out."""
        self._n_waiting_before -= 1
        self.due = now + self._step
