"""Draft lengths that pay: the arithmetic against brute force, and the controller in a world with known costs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from drafters import Puppet, noise, right

from pyspec import Engine, InvalidRequest, SamplingParams
from pyspec.speculation.acceptance import PositionRates
from pyspec.speculation.confidence import Calibration
from pyspec.speculation.controller import LengthController
from pyspec.speculation.costs import RowCosts
from pyspec.speculation.lengths import Candidate, best_lengths

# -- the best lengths --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What decodes cost, in milliseconds."""

    verify: Callable[[int], float]
    draft: Callable[[int], float]
    overhead: float = 0.1

    def rate(self, candidates: Sequence[Candidate], lengths: Sequence[int], n_plain: int, prompt_rows: int) -> float:
        """Expected tokens per millisecond with these lengths."""
        tokens = float(n_plain + len(candidates))
        for candidate, length in zip(candidates, lengths, strict=True):
            chance = 1.0
            for rate in candidate.rates[:length]:
                chance *= rate
                tokens += chance
        paid = [length for candidate, length in zip(candidates, lengths, strict=True) if not candidate.free]
        steps = [sum(length > i for length in paid) for i in range(max(paid, default=0))]
        ms = self.verify(n_plain + prompt_rows + len(candidates) + sum(lengths)) + sum(map(self.draft, steps))
        return tokens / (ms + self.overhead)

    def best(self, candidates: Sequence[Candidate], n_plain: int, prompt_rows: int, n_rows_max: int) -> float:
        """The most there is, over all lengths of all candidates."""
        room = n_rows_max - n_plain - prompt_rows - len(candidates)
        every = itertools.product(*(range(len(candidate.rates) + 1) for candidate in candidates))
        return max(self.rate(candidates, lengths, n_plain, prompt_rows) for lengths in every if sum(lengths) <= room)


def random_world(rng: random.Random) -> World:
    """Costs as they are on machines: not convex, with steps."""
    verify = [0.0]
    for _ in range(64):
        verify.append(verify[-1] + rng.choice((0.0, 0.05, 0.3, 1.0, 2.0)))
    base = rng.uniform(1.0, 20.0)
    step = rng.uniform(0.05, 3.0)
    return World(lambda rows: base + verify[rows], lambda n: step * (1.0 + 0.1 * (n - 1)))


def chosen(world: World, candidates: Sequence[Candidate], n_plain: int, prompt_rows: int, n_rows_max: int) -> float:
    """What best_lengths gets, worked out anew from its lengths."""
    choice = best_lengths(
        candidates,
        n_plain=n_plain,
        prompt_rows=prompt_rows,
        n_rows_max=n_rows_max,
        verify_ms=world.verify,
        draft_ms=world.draft,
        overhead_ms=world.overhead,
    )
    assert len(choice.lengths) == len(candidates)
    assert n_plain + prompt_rows + len(candidates) + sum(choice.lengths) <= n_rows_max
    rate = world.rate(candidates, choice.lengths, n_plain, prompt_rows)
    assert choice.rate == pytest.approx(rate)
    return rate


@pytest.mark.parametrize("seed", range(60))
def test_free_drafts_get_the_best_lengths_there_are(seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(rng)
    candidates = [
        Candidate([rng.random() for _ in range(rng.randint(1, 5))], free=True) for _ in range(rng.randint(1, 3))
    ]
    n_plain, prompt_rows, n_rows_max = rng.randint(0, 2), rng.randint(0, 4), rng.randint(10, 24)
    best = world.best(candidates, n_plain, prompt_rows, n_rows_max)
    assert chosen(world, candidates, n_plain, prompt_rows, n_rows_max) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(60))
def test_one_draft_of_a_model_gets_the_best_length_there_is(seed: int) -> None:
    rng = random.Random(seed)
    world = random_world(rng)
    candidates = [Candidate([rng.random() ** 0.3 for _ in range(rng.randint(1, 16))])]
    best = world.best(candidates, 0, 0, 40)
    assert chosen(world, candidates, 0, 0, 40) == pytest.approx(best)


def test_several_drafts_of_a_model_get_lengths_nearly_as_good() -> None:
    """They share the steps of the draft model, which a search token by token does not see ahead."""
    lost = []
    for seed in range(80):
        rng = random.Random(seed)
        world = random_world(rng)
        candidates = [Candidate([rng.random() ** 0.3 for _ in range(rng.randint(1, 4))]) for _ in range(3)]
        best = world.best(candidates, 0, 0, 40)
        lost.append(1.0 - chosen(world, candidates, 0, 0, 40) / best)
    assert sum(lost) / len(lost) < 0.02
    assert max(lost) < 0.2


def test_drafting_nothing_is_one_of_the_choices() -> None:
    choice = best_lengths(
        [Candidate([0.9, 0.9]), Candidate([0.1], free=True)],
        n_rows_max=8,
        verify_ms=lambda rows: 10.0 * rows,
        draft_ms=lambda n: 1.0,
    )
    assert choice.lengths == (0, 0)
    assert best_lengths([], n_plain=1, n_rows_max=1, verify_ms=lambda rows: 5.0, draft_ms=lambda n: 1.0).rate == 0.2


# -- costs -------------------------------------------------------------------------------------------------------


def costs(**measured: float) -> RowCosts:
    """Costs with each row count measured once: rows_4=12.0."""
    result = RowCosts()
    for name, ms in measured.items():
        result.observe(int(name.removeprefix("rows_")), ms)
    return result


def test_costs_are_what_was_measured_and_interpolated_between() -> None:
    known = costs(rows_1=10.0, rows_4=16.0, rows_8=17.0)
    assert [known(rows) for rows in (1, 2, 3, 4, 6, 8)] == pytest.approx([10, 12, 14, 16, 16.5, 17])
    assert known(16) == pytest.approx(25)  # on with the mean slope
    assert costs(rows_4=16.0)(1) == 16.0
    assert costs(rows_4=16.0)(8) > 16.0
    assert known.seen(4)
    assert not known.seen(3)
    assert known.table() == pytest.approx({1: 10, 4: 16, 8: 17})


def test_without_a_measurement_costs_are_unknown() -> None:
    known = RowCosts()
    assert not known
    assert known(3) == 0.0
    known.observe(3, 0.0)
    known.observe(3, -1.0)
    assert not known


def test_of_the_first_measurements_the_smallest_counts() -> None:
    known = costs(rows_2=50.0)
    known.observe(2, 10.0)
    known.observe(2, 12.0)
    assert known(2) == 10.0


def test_a_single_late_decode_changes_little() -> None:
    known = costs(rows_1=10.0, rows_4=12.0)
    for _ in range(20):
        known.observe(1, 10.0)
        known.observe(4, 12.0)
    known.observe(4, 5000.0)
    assert known(4) < 1.35 * 12.0
    for _ in range(50):
        known.observe(1, 10.0)
        known.observe(4, 12.0)
    assert (known(1), known(4)) == pytest.approx((10.0, 12.0), rel=0.03)


def test_a_machine_that_slows_down_makes_all_row_counts_dearer() -> None:
    known = costs(rows_1=10.0, rows_4=12.0)
    for _ in range(10):
        known.observe(1, 10.0)
    for _ in range(60):
        known.observe(1, 20.0)
    assert known(1) == pytest.approx(20.0, rel=0.05)
    assert known(4) > 1.4 * 12.0  # although nobody has decoded four rows since


# -- acceptance --------------------------------------------------------------------------------------------------


def test_rates_are_learned_by_position() -> None:
    rng = random.Random(1)
    rates = PositionRates(forget=0.98)
    for _ in range(1000):
        accepted = next((i for i, rate in enumerate((0.9, 0.5, 0.2)) if rng.random() >= rate), 3)
        rates.observe(3, accepted)
    assert rates.rates(3) == pytest.approx((0.9, 0.5, 0.2), abs=0.12)
    assert rates.rates(5)[3:] == pytest.approx([rates.rates(3)[2]] * 2)  # beyond what is known, as the last one


def test_a_new_sequence_starts_with_what_the_others_showed() -> None:
    general = PositionRates()
    first = PositionRates(general)
    assert first.rates(2) == [0.7, 0.7]
    for _ in range(50):
        first.observe(2, 0)
    second = PositionRates(general)
    assert second.rates(1)[0] < 0.2
    for _ in range(30):
        second.observe(2, 2)
    assert second.rates(2)[0] > 0.8


def test_what_was_seen_long_ago_is_forgotten_even_where_nothing_is_drafted_now() -> None:
    """A deep position that once failed is believed in again, as far as those before it do well."""
    general = PositionRates(forget=0.97)
    other, rates = PositionRates(general), PositionRates(general)
    for _ in range(20):
        other.observe(4, 2)
    for _ in range(3):
        rates.observe(4, 2)
    assert rates.rates(4)[2] < 0.4
    for _ in range(200):
        rates.observe(2, 2)
    assert min(rates.rates(4)) > 0.65  # what is expected where nothing is known, or more


def test_confidence_becomes_acceptance() -> None:
    calibration = Calibration()
    before = list(calibration.table)
    assert before == sorted(before)
    for _ in range(100):
        calibration.observe([0.97], 0)
        calibration.observe([0.02, 0.5], 1)
    assert calibration.table[-1] < 0.2
    assert calibration.table[0] > 0.9
    assert calibration.table[10] < 0.2
    assert calibration.table[15] == before[15]  # nothing seen there
    calibration.observe([1.0], 1)  # the last interval has its upper end


# -- the controller ----------------------------------------------------------------------------------------------


class Machine:
    """Rounds of one sequence with a draft model, as the engine would run them, in a world with known costs.

    Attributes:
        acceptance: chance that a drafted token is accepted; a test may change it on the way.
        drafts: for each round the length of its draft.
    """

    CONFIDENCE = 0.8

    def __init__(self, world: World, acceptance: float, *, n_max: int = 8, seed: int = 1) -> None:
        self.world = world
        self.acceptance = acceptance
        self.rng = random.Random(seed)
        self.controller = LengthController(n_max=n_max, n_rows_max=n_max + 1)
        for rows in range(1, n_max + 2):
            for _ in range(3):
                self.controller.verify.observe(rows, world.verify(rows))
        for _ in range(3):
            self.controller.draft.observe(1, world.draft(1))
            self.controller.draft.observe(2, world.draft(2))
        self.controller.begin(0)
        self.drafts: list[int] = []
        self.tokens = 0
        self.ms = 0.0

    @property
    def plain_rate(self) -> float:
        return 1.0 / (self.world.verify(1) + self.world.overhead)

    def run(self, n_rounds: int) -> list[int]:
        """So many rounds; returns the lengths of their drafts."""
        start = len(self.drafts)
        for _ in range(n_rounds):
            self.round()
        return self.drafts[start:]

    def round(self) -> None:
        controller, world = self.controller, self.world
        (may_draft,) = [0] if controller.rests([0]) else controller.model_lengths([0], [1])
        length = steps = 0
        if may_draft:
            floors, onwards = controller.floors([0])
            chance = 1.0
            for position in range(controller.n_max):
                floor = floors[min(position, len(floors) - 1)]
                steps += 1
                chance *= controller.calibration.table[int(self.CONFIDENCE * len(controller.calibration.table))]
                if chance < floor:
                    break
                length += 1
                if chance < onwards[min(position, len(onwards) - 1)]:
                    break
        accepted = next((i for i in range(length) if self.rng.random() >= self.acceptance), length)
        calls = [(1, world.draft(1))] * steps
        verify_ms = world.verify(1 + length)
        total = verify_ms + steps * world.draft(1) + world.overhead
        controller.observe_round(rows=1 + length, verify_ms=verify_ms, draft_calls=calls, total_ms=total)
        if may_draft:
            controller.observe_model_draft(0, [self.CONFIDENCE] * length, accepted, steps=steps, emitted=accepted + 1)
        self.drafts.append(length)
        self.tokens += accepted + 1
        self.ms += total


# A target that reads weights mostly, so that further rows are cheap, and a draft model at a tenth of its cost.
CHEAP = World(lambda rows: 10.0 + 0.5 * (rows - 1), lambda n: 1.0)
# A target that has to compute for every row, as on a machine with slow cores.
DEAR = World(lambda rows: 10.0 * rows, lambda n: 5.0)


def test_it_drafts_where_that_pays() -> None:
    machine = Machine(CHEAP, 0.9)
    lengths = machine.run(500)
    assert sum(length > 0 for length in lengths) > 490
    assert sum(lengths[100:]) / 400 > 4
    assert machine.tokens / machine.ms > 2.5 * machine.plain_rate


@pytest.mark.parametrize(("acceptance", "share"), [(0.3, 0.87), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.95, 0.97)])
def test_it_comes_near_the_best_fixed_length(acceptance: float, share: float) -> None:
    """Although the draft model's confidence says nothing here, so that it has to be sure of tokens one by one."""
    machine = Machine(CHEAP, acceptance, seed=3)
    machine.run(3000)
    best = max(CHEAP.rate([Candidate([acceptance] * 8)], [n], 0, 0) for n in range(9))
    assert machine.tokens / machine.ms > share * best


def test_it_does_not_draft_where_nothing_can_pay() -> None:
    machine = Machine(DEAR, 0.95)
    lengths = machine.run(2000)
    assert sum(length > 0 for length in lengths[64:]) / len(lengths) < 0.005
    assert machine.tokens / machine.ms > 0.98 * machine.plain_rate


def test_it_stops_with_a_draft_model_that_is_always_wrong() -> None:
    machine = Machine(CHEAP, 0.0)
    lengths = machine.run(64)
    assert lengths[0] > 0
    tokens, ms = machine.tokens, machine.ms
    late = machine.run(4000)
    assert sum(length > 0 for length in late) / len(late) < 0.02
    assert (machine.tokens - tokens) / (machine.ms - ms) > 0.97 * machine.plain_rate
    assert machine.controller.decisions.plain > 3900


@pytest.mark.parametrize("acceptance", [0.0, 0.05])
def test_trying_again_takes_a_hundredth_of_the_time_at_most(acceptance: float) -> None:
    machine = Machine(CHEAP, acceptance)
    machine.run(5000)
    decisions = machine.controller.decisions
    assert decisions.probes > 5
    dearest = CHEAP.verify(9) + 8 * CHEAP.draft(1) + CHEAP.overhead
    assert decisions.probe_ms <= LengthController.PROBE_SHARE * machine.ms + dearest
    # and that is what they really cost: with the first rounds, all beyond plain decoding
    assert machine.ms - machine.tokens / machine.plain_rate < 0.01 * machine.ms + 64 * dearest


def test_it_notices_when_drafting_pays_again() -> None:
    machine = Machine(CHEAP, 0.0)
    machine.run(400)
    machine.acceptance = 0.95
    machine.run(600)
    late = machine.run(200)
    assert sum(length > 0 for length in late) > 190


def test_it_notices_when_drafting_pays_no_longer() -> None:
    machine = Machine(CHEAP, 0.95)
    machine.run(400)
    machine.acceptance = 0.0
    machine.run(64)
    late = machine.run(1000)
    assert sum(length > 0 for length in late) < 20


def test_one_bad_measurement_does_not_switch_it_off() -> None:
    machine = Machine(CHEAP, 0.9)
    machine.run(100)
    for rows in range(2, 10):
        machine.controller.observe_round(rows=rows, verify_ms=2000.0, draft_calls=[(1, 500.0)], total_ms=3000.0)
    machine.run(600)
    late = machine.run(100)
    assert sum(length > 0 for length in late) > 95
    assert sum(late) / len(late) > 3


def test_a_bad_start_does_not_keep_it_off() -> None:
    """The very first look at the costs came while the machine was doing something else."""
    controller = LengthController(n_max=8, n_rows_max=9)
    for rows in range(1, 10):
        controller.verify.observe(rows, CHEAP.verify(rows) * (50.0 if rows > 1 else 1.0))
    for n in (1, 2):
        controller.draft.observe(n, 50.0)
    machine = Machine(CHEAP, 0.9)
    machine.controller = controller
    controller.begin(0)
    machine.run(3000)
    late = machine.run(200)
    assert sum(length > 0 for length in late) > 190


# A target whose second row costs half as much again, and those after it little.
STEP = World(lambda rows: 10.0 + (5.0 + 0.5 * rows if rows > 1 else 0.0), lambda n: 1.0)


def test_unlucky_first_drafts_do_not_keep_a_good_draft_model_off() -> None:
    machine = Machine(STEP, 0.0)
    machine.run(3)
    machine.acceptance = 0.95
    assert sum(length > 0 for length in machine.run(40)) > 28


def test_a_model_that_only_ever_fails_is_soon_left_alone() -> None:
    machine = Machine(STEP, 0.0)
    assert sum(length > 0 for length in machine.run(64)) <= LengthController.FIRST_TRIES + 2


def test_a_draft_model_that_is_never_sure_is_known_too() -> None:
    """Its rounds cost a step, whether there is something to verify or not."""
    machine = Machine(STEP, 0.0)
    machine.CONFIDENCE = 0.0
    asked = 0
    for _ in range(200):
        before = machine.ms
        machine.round()
        asked += machine.ms - before > STEP.verify(1) + STEP.overhead + 0.5
    assert asked <= LengthController.FIRST_TRIES + 4


def test_a_request_begins_with_what_the_last_one_showed() -> None:
    machine = Machine(CHEAP, 0.0)
    machine.run(500)
    machine.controller.end(0)
    machine.controller.begin(0)
    first = machine.run(8)
    assert sum(length > 0 for length in first) <= 1


class Copyist:
    """Rounds of one sequence for which a speculator drafts eight tokens each time, for nothing. The text counts up."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.controller = Machine(world, 0.0).controller
        self.at = 0
        self.ms = 0.0

    def round(self, n_right: int, speculator: str = "ngram-mod") -> int:
        """A round in which so many drafted tokens are what the target says; returns how many were verified."""
        draft = [*range(self.at, self.at + n_right), *[-1] * (8 - n_right)]
        length = self.controller.cut(0, speculator, draft, n_rows=1, model_may_draft=False)
        accepted = min(length, n_right)
        verify_ms = self.world.verify(1 + length)
        self.controller.observe_round(rows=1 + length, verify_ms=verify_ms, draft_calls=[], total_ms=verify_ms + 0.1)
        if length:
            self.controller.observe_draft(0, speculator, length, accepted)
        self.controller.observe_emitted(0, list(range(self.at, self.at + accepted + 1)))
        self.at += accepted + 1
        self.ms += verify_ms
        return length


def test_free_drafts_are_cut_to_what_pays() -> None:
    cheap, dear = Copyist(CHEAP), Copyist(DEAR)
    assert cheap.round(8) >= 2
    assert [dear.round(8) for _ in range(20)] == [0] * 20  # a row costs what a token brings, however sure it is
    assert dear.controller.decisions.cut == 8 * 20
    for _ in range(100):
        cheap.round(0)
    assert cheap.round(0) == 0
    assert cheap.round(0, "ngram-simple") >= 2  # what another speculator's drafts are worth is another matter


def test_free_drafts_grow_with_what_is_accepted() -> None:
    """A text that begins to repeat itself is drafted whole after a few rounds; one that stops costs a few rows."""
    copyist = Copyist(CHEAP)
    lengths = [copyist.round(8) for _ in range(6)]
    assert lengths[0] <= 4 and lengths[-1] == 8 and lengths == sorted(lengths)
    assert copyist.round(0) == 8  # nobody could know
    assert sum([copyist.round(0) for _ in range(60)][40:]) == 0
    copyist.controller.begin(0)  # another request begins carefully again
    assert copyist.round(8) <= 6


def test_the_longer_it_was_right_the_likelier_it_is() -> None:
    """Copies of four tokens: behind four right ones the next is not worth a row, at their beginning it is."""
    copyist = Copyist(CHEAP)
    lengths = []
    for _ in range(200):
        lengths.append(copyist.round(4))
        copyist.round(0)  # the copy ends
    assert set(lengths[50:]) <= {3, 4, 5}
    known = copyist.controller._free(0, "ngram-mod")
    first, *_, last = known.rates.rates(6)[1:5]
    assert first > 0.9 and last < 0.3


# A second row costs two thirds of the first one, as with weights in four bits on two cores.
STEEP = World(lambda rows: 4.0 + 2.6 * (rows - 1), lambda n: 4.0)


@pytest.mark.parametrize("world", [CHEAP, STEEP, DEAR], ids=["cheap rows", "steep", "dear rows"])
@pytest.mark.parametrize("n_right", [0, 1, 2])
def test_drafts_that_are_wrong_soon_cost_about_a_token(world: World, n_right: int) -> None:
    """Whatever they look like, a request of 96 tokens loses little to drafts that it could have gone without."""
    others = Copyist(world)
    for _ in range(30):
        others.round(8)  # requests before this one repeated themselves
    copyist = Copyist(world)
    copyist.controller = others.controller
    copyist.controller.begin(0)
    copyist.at = others.at
    start = copyist.at
    while copyist.at < start + 96:
        copyist.round(n_right)
    plain_ms = world.verify(1) * (copyist.at - start)
    assert copyist.ms <= plain_ms + 2.0 * world.verify(1)


@pytest.mark.parametrize("world", [CHEAP, STEEP], ids=["cheap rows", "steep"])
def test_a_text_that_repeats_itself_is_found_out_soon(world: World) -> None:
    copyist = Copyist(world)
    while copyist.at < 96:
        copyist.round(8)
    best_ms = world.verify(9) * 96 / 9
    assert copyist.ms <= 1.35 * best_ms


def test_a_long_run_may_be_drafted_even_where_the_first_row_is_dear() -> None:
    """A second row costs more than a token, nine rows little more than two: long drafts pay, and copies are long."""
    copyist = Copyist(World(lambda rows: 10.0 if rows == 1 else 22.0 + 0.1 * rows, lambda n: 1.0))
    lengths = [copyist.round(8) for _ in range(40)]
    assert lengths[0] == 0 and lengths[-1] == 8


def test_what_a_new_graph_costs_counts_for_drafts() -> None:
    """A decode of another number of rows than the last one's takes a token's time more, so that short drafts lose."""
    for switch_ms, drafts in ((0.0, True), (8.0, False)):
        copyist = Copyist(CHEAP)
        copyist.controller.switch_ms = switch_ms
        assert (min([copyist.round(1) for _ in range(40)][30:]) > 0) is drafts
        assert [copyist.round(8) for _ in range(30)][-1] == 8
    controller = Copyist(CHEAP).controller
    controller.switch_ms = 5.0
    for rows in (1, 4, 1, 4, 4):
        for _ in range(3):
            controller.observe_round(rows=1, verify_ms=CHEAP.verify(1), draft_calls=[], total_ms=CHEAP.verify(1))
        for n in (rows, 1):
            verify_ms = CHEAP.verify(n) + 5.0 * (rows != 1)
            controller.observe_round(rows=n, verify_ms=verify_ms, draft_calls=[], total_ms=verify_ms)
    assert [controller.verify(rows) for rows in (1, 4)] == pytest.approx([CHEAP.verify(1), CHEAP.verify(4)], rel=0.01)


def test_a_copy_from_another_place_begins_anew() -> None:
    controller = Copyist(CHEAP).controller
    known = controller._free(0, "ngram-mod")
    controller.cut(0, "ngram-mod", [1, 2, 3, 4], n_rows=1, model_may_draft=False)
    controller.observe_emitted(0, [1, 2])
    assert (known.run, known.expected) == (2, (3, 4))
    controller.cut(0, "ngram-mod", [3, 4, 5], n_rows=1, model_may_draft=False)  # goes on
    assert (known.run, known.expected) == (2, (3, 4, 5))
    controller.cut(0, "ngram-mod", [9, 9], n_rows=1, model_may_draft=False)
    assert (known.run, known.expected) == (0, (9, 9))
    controller.observe_emitted(0, [9, 9, 7])  # what comes behind the draft says nothing of it
    assert (known.run, known.expected) == (2, ())
    controller.observe_emitted(0, [8])  # a round without a draft: the copy is over
    assert known.run == 0


def test_a_chance_in_a_hundred_is_not_worth_a_row() -> None:
    """Costs are never known that exactly."""
    copyist = Copyist(World(lambda rows: 10.0 + 0.01 * rows, lambda n: 1.0))
    lengths = [copyist.round(0) for _ in range(400)]
    assert sum(lengths[200:]) == 0


def test_a_noisy_clock_does_not_make_a_wrong_draft_pay() -> None:
    """Two rows that were measured as cheaper than one are still one row too many, if they bring nothing."""
    world = World(lambda rows: 10.0 if rows == 1 else 8.0, lambda n: 0.1)
    copyist = Copyist(world)
    lengths = [copyist.round(0) for _ in range(400)]
    assert sum(lengths[200:]) == 0
    assert sum(length > 0 for length in Machine(world, 0.0).run(500)[64:]) < 20


def test_free_drafts_that_are_not_verified_are_learned_from() -> None:
    """Without a row spent on them: wrong for 400 rounds, then right."""
    copyist = Copyist(CHEAP)
    rows = [copyist.round(8 if number >= 400 else 0) for number in range(500)]
    assert sum(rows[:400]) < 20 and sum(rows[50:400]) == 0
    assert min(rows[430:]) > 0 and rows[-1] == 8


def test_who_finds_nothing_is_asked_less_often_where_rounds_are_short() -> None:
    """Asking takes a share of a short round that is worth sparing, and of a long one it is not."""
    for ms, least, most in ((4.0, 25, 40), (100.0, 100, 100)):
        controller = Copyist(World(lambda rows, ms=ms: ms * rows, lambda n: 1.0)).controller
        asked = 0
        for _ in range(100):
            asked += controller.asks(0, "ngram-mod")
            controller.observe_emitted(0, [1])
        assert least <= asked <= most, ms
        assert controller.decisions.unasked == 100 - asked


def test_who_is_right_is_asked_every_round() -> None:
    """And so is who was right often enough to have something in hand."""
    controller = Copyist(World(lambda rows: 4.0 + 0.2 * rows, lambda n: 1.0)).controller
    rounds = iter(range(1000))
    at = next(number for number in rounds if controller.asks(0, "ngram-mod") and number > 10)
    for token in range(at, at + 20):
        controller.cut(0, "ngram-mod", [token, token + 1], n_rows=1, model_may_draft=False)
        controller.observe_emitted(0, [token])
        assert controller.asks(0, "ngram-mod")
    controller.observe_emitted(0, [0])  # the copy is over, and has brought something
    assert controller._free(0, "ngram-mod").balance_ms > 0.0
    assert all(controller.asks(0, "ngram-mod") for _ in range(20))
    for _ in range(3):
        controller.observe_draft(0, "ngram-mod", 8, 0)
    assert controller._free(0, "ngram-mod").balance_ms < 0.0
    assert sum(controller.asks(0, "ngram-mod") for _ in range(100)) < 50


def controller_of(world: World, n: int) -> LengthController:
    """One that knows what everything costs, with so many requests, each in a pool of its own."""
    controller = LengthController(n_max=4, n_rows_max=64, own_pools=True)
    for rows in range(1, 65):
        for _ in range(3):
            controller.verify.observe(rows, world.verify(rows))
    for rows in range(1, 9):
        controller.draft.observe(rows, world.draft(rows))
    for seq in range(n):
        controller.begin(seq)
    return controller


def test_nobody_tries_what_could_not_pay_with_so_many() -> None:
    """One sequence alone would draft; of four, whose batch is dear, none tries whether it would pay by now."""
    for n, tries in ((1, True), (4, False)):
        world = World(lambda rows: 10.0 if rows <= 4 else 10.0 + 4.0 * (rows - 4), lambda n: 2.0)
        controller = controller_of(world, n)
        for seq in range(n):
            for _ in range(40):
                controller.observe_model_draft(seq, [0.9] * 4, 0, steps=4, emitted=1)
        controller.observe_time(n, 1e6)
        tried = 0
        for _ in range(200):
            if not controller.rests(range(n)):
                tried += any(controller.model_lengths(range(n), [1] * n))
        assert (tried > 0) is tries, n


def test_nobody_looks_for_what_would_not_be_verified() -> None:
    controller = LengthController(n_max=4, n_rows_max=64, own_pools=True)
    controller.begin(0)
    for rows in range(1, 17):
        controller.verify.observe(rows, 100.0 + rows)
    assert controller.asks(0, "ngram-mod", n_generating=2)
    assert not any(controller.asks(0, "ngram-mod", n_generating=3) for _ in range(20))
    assert controller.decisions.unasked == 20
    assert controller.asks(0, "ngram-mod", n_generating=2)


def test_many_sequences_do_not_wait_for_the_draft_of_one() -> None:
    """With pools of their own it would be computed in a piece besides: two share a batch well, four falter."""
    for n_generating, kept in ((1, True), (2, True), (3, False), (4, False)):
        controller = LengthController(n_max=4, n_rows_max=64, own_pools=True)
        for rows in range(1, 17):
            controller.verify.observe(rows, CHEAP.verify(rows))
            controller.draft.observe(rows, 0.01)
        for seq in range(n_generating):
            controller.begin(seq)
        for at in range(0, 80, 4):
            draft = range(at, at + 4)
            controller.cut(0, "ngram-mod", draft, n_rows=n_generating, n_generating=n_generating, model_may_draft=False)
            controller.observe_emitted(0, draft, n_generating=n_generating)
        before = controller.decisions.cut
        length = controller.cut(
            0, "ngram-mod", range(80, 88), n_rows=n_generating, n_generating=n_generating, model_may_draft=False
        )
        assert (length > 0) is kept, n_generating
        assert controller.decisions.cut - before == 8 - length
        # The draft model's are of one length, and so computed with the others, if all can have one.
        seqs = list(range(n_generating))
        assert all(controller.model_lengths(seqs, [1] * n_generating))
        if n_generating > 2:
            assert not any(controller.model_lengths(seqs[1:], [1] * (n_generating - 1), n_plain=1))


def test_two_sequences_draft_together_for_a_small_gain_and_four_do_not() -> None:
    for n, drafts in ((2, True), (4, False)):
        # Of each token so much is saved that drafts are worth a tenth.
        world = World(lambda rows, n=n: 10.0 if rows <= n else 10.0 + 2.5 * (rows - n) / n, lambda n: 6.0)
        controller = controller_of(world, n)
        for seq in range(n):
            for _ in range(40):
                controller.observe_model_draft(seq, [0.9] * 4, 3, steps=4, emitted=4)
                controller.observe_model_draft(seq, [0.9] * 4, 4, steps=4, emitted=5)
        lengths = controller.model_lengths(range(n), [1] * n)
        assert any(lengths) is drafts, n
        assert len(set(lengths)) == 1


def test_a_text_is_not_read_up_for_its_last_tokens() -> None:
    """What the draft model has not read costs as much for few tokens to come as for many."""
    controller = LengthController(n_max=4, n_rows_max=64)
    for rows in range(1, 17):
        controller.verify.observe(rows, CHEAP.verify(rows))
    for rows, ms in ((1, 1.0), (200, 100.0)):
        controller.draft.observe(rows, ms)
    controller.begin(0)
    for _ in range(20):
        controller.observe_model_draft(0, [0.9] * 4, 4, steps=4, emitted=5)
    assert controller.model_lengths([0], [200], left=[1000]) == [4]
    assert controller.model_lengths([0], [200], left=[8]) == [0]
    assert controller.model_lengths([0], [1], left=[8]) == [4]


def test_a_draft_counts_token_by_token() -> None:
    controller = Machine(DEAR, 0.0).controller
    known = controller._free(0, "ngram-mod")
    assert controller.cut(0, "ngram-mod", [5, 6, 7, 8], n_rows=1, model_may_draft=False) == 0
    before = known.rates.rates(4)
    controller.observe_emitted(0, [5])
    controller.observe_emitted(0, [6, 7, 9, 5])
    after = known.rates.rates(4)
    assert [a > b for a, b in zip(after, before, strict=True)] == [True, True, True, False]
    assert (known.run, known.expected) == (0, ())
    controller.observe_emitted(0, [5])
    assert known.rates.rates(4) == after


def test_of_several_sequences_the_most_promising_draft() -> None:
    """Rows of the batch get dearer the more there are, so that not all sequences can draft with profit."""
    world = World(lambda rows: 10.0 + (0.3 if rows <= 8 else 3.0) * rows, lambda n: 0.5)
    controller = LengthController(n_max=4, n_rows_max=16)
    for rows in range(1, 17):
        for _ in range(3):
            controller.verify.observe(rows, world.verify(rows))
    for n in (1, 2, 3):
        controller.draft.observe(n, 0.5)
    for seq in range(3):
        controller.begin(seq)
    for _ in range(50):
        for seq, accepted in ((0, 0), (1, 4), (2, 0)):
            controller.observe_model_draft(seq, [0.8] * 4, accepted, steps=4, emitted=accepted + 1)
    assert controller.model_lengths([0, 1, 2], [1, 1, 1]) == [0, 4, 0]


def test_drafts_get_shorter_as_load_grows() -> None:
    """With more sequences in the batch a row costs what a token brings, and at last nobody drafts."""
    world = World(lambda rows: 10.0 + 1.5 * rows, lambda n: 0.5)
    controller = LengthController(n_max=6, n_rows_max=64)
    for rows in range(1, 65):
        for _ in range(3):
            controller.verify.observe(rows, world.verify(rows))
    for n in range(1, 9):
        controller.draft.observe(n, 0.5)
    for seq in range(8):
        controller.begin(seq)
        for _ in range(30):
            controller.observe_model_draft(seq, [0.7] * 6, 1, steps=6, emitted=2)
            controller.observe_model_draft(seq, [0.7] * 6, 4, steps=6, emitted=5)
    totals = [sum(controller.model_lengths(range(n), [1] * n)) / n for n in (2, 4, 8)]
    alone = sum(controller.model_lengths([0], [1]))
    assert alone >= totals[0] >= totals[1] >= totals[2]
    assert totals[0] > totals[2]


def test_it_says_what_it_believes() -> None:
    machine = Machine(CHEAP, 0.9)
    machine.run(50)
    report = machine.controller.report()
    assert report["verify_ms"][1] == pytest.approx(10.0, rel=0.01)
    assert report["draft_ms"][1] == pytest.approx(1.0, rel=0.01)
    assert report["rounds"] == 50
    assert report["tokens_per_drafted_round"] > 3
    assert len(report["floors"]) == 8


# -- in an engine ------------------------------------------------------------------------------------------------

PROMPT = [10, 20, 30, 40]


def test_an_engine_stops_drafting_what_is_always_wrong(tiny: Callable[[str], Path]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=700, ignore_eos=True)
    puppet = Puppet()
    with Engine(tiny("llama"), speculation=puppet, draft_length="auto", n_threads=1) as engine:
        plain = engine.generate(PROMPT, params, n_draft_max=0)
        puppet.script = noise(PROMPT, plain.token_ids, engine.model.vocab.n_tokens)
        early = engine.generate(PROMPT, params.replace(max_tokens=64))
        late = engine.generate(PROMPT, params)
    assert early.token_ids == plain.token_ids[:64]
    assert early.stats.draft_length is not None and early.stats.draft_length["cut"] > 8 * 32  # it was asked
    assert late.token_ids == plain.token_ids
    assert late.stats.accepted == 0
    # up to eight tokens were offered in every round
    assert late.stats.drafted < 0.03 * 8 * late.stats.rounds


def test_an_engine_goes_on_drafting_what_is_right(tiny: Callable[[str], Path]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    puppet = Puppet()
    with Engine(tiny("llama"), speculation=puppet, draft_length="auto", n_threads=1) as engine:
        plain = engine.generate(PROMPT, params, n_draft_max=0)
        puppet.script = right(PROMPT, plain.token_ids)
        fast = engine.generate(PROMPT, params)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.emitted_from_draft > 0.6 * 300


def test_a_draft_length_is_auto_or_fixed(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidRequest, match="'auto' or 'fixed'"):
        Engine(tiny("llama"), draft_length="long")  # type: ignore[arg-type]
    with Engine(tiny("llama"), speculation=Puppet()) as engine:
        assert engine.config.draft_length == "fixed"


def test_each_output_head_is_known_by_itself() -> None:
    """Drafts of a reduced head that come to nothing say nothing of the whole one's, and a step has a cost for each."""
    controller = LengthController(n_max=4, n_rows_max=64)
    for rows in (1, 2, 4, 8):
        for _ in range(3):
            controller.verify.observe(rows, 20.0 + rows)
    for reduced, ms in ((False, 5.0), (True, 2.0)):
        controller.use_head(reduced=reduced)
        controller.draft.observe(1, ms)
    assert controller.draft(1) == 2.0
    controller.begin(0)

    def round_with(accepted: int) -> None:
        controller.observe_model_draft(0, [0.9] * 4, accepted, steps=4, emitted=accepted + 1)

    assert controller.model_lengths([0], [1]) == [4]
    for _ in range(12):
        round_with(0)
    assert controller.model_lengths([0], [1]) == [0]
    sure = controller.calibration.table[18]
    controller.use_head(reduced=False)
    assert controller.draft(1) == 5.0 and controller.calibration.table[18] > sure
    assert controller.model_lengths([0], [1]) == [4]
    for _ in range(6):
        round_with(4)
    controller.use_head(reduced=True)
    assert (controller.draft(1), controller.calibration.table[18]) == (2.0, sure)
    assert controller.model_lengths([0], [1]) == [0]
    controller.begin(1)  # knows what other requests' drafts of this head brought
    assert controller.model_lengths([1], [1]) == [0]
    controller.use_head(reduced=False)
    assert controller.model_lengths([0], [1]) == controller.model_lengths([1], [1]) == [4]
    controller.end(0)
    controller.use_head(reduced=True)
    controller.begin(0)  # another request: nothing is left of the first one's
    controller.use_head(reduced=False)
    assert controller.model_lengths([0], [1]) == [4]


@pytest.mark.parametrize("disturbed_by", ["nothing", "another request", "a prompt", "a new request", "the other head"])
@pytest.mark.parametrize("seqs", [[0], [0, 1, 2]])
def test_requests_go_on_not_to_draft_for_a_few_rounds(disturbed_by: str, seqs: list[int]) -> None:
    """A draft step as dear as the target's: that needs no thought in every round. Rounds and idleness count on."""
    controller = LengthController(n_max=4, n_rows_max=64)
    for rows in (1, 2, 4, 8):
        controller.verify.observe(rows, 4.0 * rows)
    for reduced in (True, False):
        controller.use_head(reduced=reduced)
        controller.draft.observe(1, 4.0)
    for seq in seqs:
        controller.begin(seq)
    assert not controller.rests(seqs)  # nothing was decided yet
    assert not any(controller.model_lengths(seqs, [1] * len(seqs)))
    assert controller.rests(seqs)
    n_rests = 1
    if disturbed_by == "another request":
        assert not controller.rests([*seqs, 3])
        assert not controller.rests(seqs, n_plain=1)
    elif disturbed_by == "a prompt":
        assert not controller.rests(seqs, prompt_rows=16)
    elif disturbed_by == "a new request":
        controller.begin(3)
    elif disturbed_by == "the other head":
        controller.use_head(reduced=True)
    else:
        while controller.rests(seqs):
            n_rests += 1
        assert n_rests == controller.REST
    assert not controller.rests(seqs)
    assert (controller.decisions.rounds, controller.decisions.plain) == (1 + n_rests, 1 + n_rests)
