"""Steady streams: the tokens of a round handed to the reader one by one, spread over the time until the next round.

A round of speculation brings several tokens at once and takes longer than one of plain decoding, so that a reader sees
bursts. A pacer is a jitter buffer: it hands out the first token of a text at once and from then on one at a time, at
the speed with which they come, a little faster while many wait and slower while few do. The end of a text is not held
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

    FORGET = 0.9  # weight of the past after one more round
    LEAST, MOST = 0.5, 2.0  # the time between two tokens, in times of what one takes on the mean

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
            on_the_mean = self._seconds / self._tokens
            until_the_next = self._seconds / self._rounds
            self._step = min(max(until_the_next / n_waiting, self.LEAST * on_the_mean), self.MOST * on_the_mean)
        self.due = taken_at + self._step

    def taken(self, now: float) -> None:
        """A token was handed out."""
        self._n_waiting_before -= 1
        self.due = now + self._step
