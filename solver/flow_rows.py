"""The laws of a fluid as rows of a linear program; verify/SPEC.md, "Flows", says why they hold.

The program asks how much longer the unseen middle of time would have to be for all work to be
done. Only what a device can do there depends on that, so one program tells the least horizon.
Where all of time is seen, it asks how many microbatches of a stage are left undone.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd

import numpy as np

from bubbleproof.schedules.schedule import Flow
from bubbleproof.solver.flow_grid import Grid
from bubbleproof.solver.flow_kinds import Event, Kind
from bubbleproof.solver.flow_view import View
from bubbleproof.solver.limits import room
from bubbleproof.solver.linear_program import Entries, Ints, LinearProgram, Multipliers


class Rows:
    """The linear program of a view up to the horizon of a grid; all times in units.

    Attributes
    ----------
    program
        It, complete.
    grid
        The instants.
    """

    def __init__(self, view: View, grid: Grid) -> None:
        step = int(np.diff(grid.instants[:3])[-1])
        self.program = LinearProgram(size=step)
        self._view, self._problem, self.grid = view, view.problem, grid
        self._laws: list[tuple[str, Ints, Ints]] = []
        """For each block of rows a law, and the first and last places that each row adds up."""
        self._at = grid.instants[1:]
        self._row = np.arange(len(self._at), dtype=np.int64)
        self._kinds = view.kinds
        self._ticks = [kind.ticks // view.unit for kind in view.kinds]
        self._stages = {stage for chain in view.chains for stage in chain}
        self._own: list[bool] = []
        """For each kind whether it has columns of its own, not those of its image."""
        self._curves = self._add_curves()
        self._doing: dict[tuple[int, Event], list[int]] = {}
        for index, kind in enumerate(view.kinds):
            for event in kind.does:
                self._doing.setdefault(event, []).append(index)
        self._add_laws()

    def _add_laws(self) -> None:
        for kind, curve, own in zip(self._kinds, self._curves, self._own, strict=True):
            rise = [self._entries(curve[:-1], 1), self._entries(curve[1:], -1)]
            if own:
                self._add(f"rising {kind.name}", rise, 0)
        for chain in self._view.chains:
            self._add_chain(chain)
        self._add_numbers()
        mirror = self._view.mirror
        for device in self._view.devices:
            if mirror is not None and device > mirror.device[device]:
                continue
            mine = [i for i, kind in enumerate(self._kinds) if kind.device == device]
            self._add_exclusion(device, mine)
            self._add_busy(device, mine)
            self._add_memory(device, mine)
        self._add_end()

    def _add_curves(self) -> list[Ints]:
        known: dict[tuple[tuple[int, Event], ...], Ints] = {}
        for kind in self._kinds:
            curve = known.get(self._view.image(kind.does))
            self._own.append(curve is None)
            if curve is None:
                curve = self.program.add_columns(self._most_started(kind))
            known[kind.does] = curve
        return [known[kind.does] for kind in self._kinds]

    def _number(self, stage: int) -> int:
        return len(self._problem.microbatches_of_stage(stage))

    def _add_numbers(self) -> None:
        """Each event happens once for each microbatch, whichever kinds of block do it."""
        row, end = np.zeros(1, np.int64), self._row[-1:] + 1
        for (stage, event), indices in self._doing.items():
            if stage in self._stages and len(indices) > 1:
                number = np.array([self._number(stage)], np.int64)
                entries = [(row, self._curves[i][-1:], row + 1) for i in indices]
                self._add_at(f"number {stage}{event.value}", end, entries, number)

    def _most_started(self, kind: Kind) -> Ints:
        """Return how many blocks of a kind can have started by each instant, at most."""
        view = self._view
        count = min(self._number(stage) for stage, _ in kind.does)
        most = np.full(len(self.grid.instants), count, np.int64)
        if not view.early.issuperset(kind.does):
            most[0] = 0
        stage, event = kind.does[0]
        if (view.target is None or view.from_begin) and event is Event.FORWARD:
            lead = view.times.up(view.times.first_in_chain(stage), stage) // view.unit
            most[self.grid.instants < lead] = 0
        return most

    def _entries(self, columns: Ints, value: int) -> Entries:
        return self._row, columns, np.full(len(self._row), value, np.int64)

    def _started(self, index: int, value: int) -> Entries:
        return self._entries(self._curves[index][1:], value)

    def _over(self, index: int, value: int, lag: int = 0) -> Entries:
        """Return the entries of how many of a kind are over for a time."""
        places = self.grid.after(self._at - self._ticks[index] - lag)
        return self._entries(self._curves[index][places], value)

    def _add(self, law: str, entries: Sequence[Entries], limit: int) -> None:
        if entries:
            self._add_at(law, self._row + 1, entries, np.full(len(self._row), limit, np.int64))

    def _add_at(
        self,
        law: str,
        places: Ints,
        entries: Sequence[Entries],
        limit: Ints,
        longer: Ints | None = None,
    ) -> None:
        self.program.add_rows(entries, limit, longer)
        self._laws.append((law, places, places))

    def _add_chain(self, chain: Sequence[int]) -> None:
        """What needs an input has started no oftener than the input was there."""
        times, unit = self._view.times, self._view.unit
        for a, b in pairwise(chain):
            if (b, Event.FORWARD) not in self._view.early:
                lag = (times.up(a, b) - times.forward[a]) // unit
                self._add_order(f"forward {a} {b}", (a, Event.FORWARD), (b, Event.FORWARD), lag)
            lag = (times.down(b, a) - times.gradient[b]) // unit
            self._add_order(f"gradient {b} {a}", (b, Event.GRADIENT), (a, Event.GRADIENT), lag)
        for last in chain[-1:]:
            lag = (times.turnaround(last) - times.forward[last]) // unit
            self._add_order(f"turn {last}", (last, Event.FORWARD), (last, Event.GRADIENT), lag)
        for stage in chain:
            alone = [
                [i for i in self._doing[stage, event] if self._kinds[i].does == ((stage, event),)]
                for event in (Event.GRADIENT, Event.WEIGHT)
            ]
            if alone[1]:
                over = [self._over(i, -1) for i in alone[0]]
                self._add(f"weight {stage}", [self._started(i, 1) for i in alone[1]] + over, 0)

    def _add_order(
        self, law: str, before: tuple[int, Event], after: tuple[int, Event], lag: int
    ) -> None:
        over = [self._over(i, -1, lag) for i in self._doing[before]]
        self._add(law, [self._started(i, 1) for i in self._doing[after]] + over, 0)

    def _add_exclusion(self, device: int, mine: Sequence[int]) -> None:
        """At any instant at most one block of a device is in progress."""
        busy = [i for i in mine if self._ticks[i]]
        entries = [self._started(i, 1) for i in busy] + [self._over(i, -1) for i in busy]
        self._add(f"exclusive {device}", entries, 1)

    def _add_busy(self, device: int, mine: Sequence[int]) -> None:
        """From one mark to the next a device is busy no longer than the time between."""
        grid = self.grid
        marks = self._marks(max(self._ticks[i] for i in mine))
        if not len(marks):
            return
        most = sum(self._ticks[i] * self._number(self._kinds[i].does[0][0]) for i in mine)
        busy = self.program.add_columns(np.full(len(marks), most, np.int64), size=self.program.size)
        rows, ones = np.arange(len(marks) - 1), np.ones(len(marks) - 1, np.int64)
        entries = [(rows, busy[1:], ones), (rows, busy[:-1], -ones)]
        middle = 0 if grid.middle is None else grid.middle
        longer = ((marks[:-1] < middle) & (middle <= marks[1:])).astype(np.int64)
        self.program.add_rows(entries, np.diff(grid.instants[marks]), longer)
        self._laws.append((f"time {device}", marks[:-1] + 1, marks[1:]))
        # How long a device was busy until t is for each kind the sum of N over the last of its
        # duration, which lies between the sums of N at the instants before and behind.
        rows, ones = np.arange(len(marks)), np.ones(len(marks), np.int64)
        for law, behind, sign in (("busy at least", False, 1), ("busy at most", True, -1)):
            entries = [(rows, busy, -sign * ones)]
            for i in mine:
                for row, place, number in grid.moments(marks, self._ticks[i], behind=behind):
                    entries.append((row, self._curves[i][place], sign * number))
            self._add_at(f"{law} {device}", marks, entries, 0 * ones)

    def _marks(self, longest: int) -> Ints:
        """Return the places at which it is counted how long a device was busy.

        Where all instants but the middle are seen, only about the middle this says anything new.
        On a coarse grid one mark in a longest block's time does as well as all, in less time.
        """
        instants, middle = self.grid.instants, self.grid.middle
        about: Ints = np.array([] if middle is None else [middle - 1], np.int64)
        apart = np.delete(np.diff(instants), about)
        if (apart == 1).all():
            behind = self.grid.after(instants[about + 1] + longest)
            return np.concatenate((about, behind))
        every = max(1, longest // self.program.size)
        regular = np.append(np.arange(0, len(instants), every), len(instants) - 1)
        return np.unique(np.concatenate((regular, about, about + 1)))

    def _add_memory(self, device: int, mine: Sequence[int]) -> None:
        """What is allocated and not yet freed fits into the device."""
        limit = room(self._problem, device)
        changes = [(i, self._kinds[i].allocate, self._kinds[i].free) for i in mine]
        grain = gcd(*(amount for _, *both in changes for amount in both))
        if limit is None or not grain:
            return
        entries = [self._started(i, taken // grain) for i, taken, _ in changes if taken]
        entries += [self._over(i, -freed // grain) for i, _, freed in changes if freed]
        self._add(f"memory {device}", entries, limit // grain)

    def _add_end(self) -> None:
        """By the horizon all is over; for the makespan with the way back to the first stage."""
        view, row, end = self._view, np.zeros(1, np.int64), self._row[-1:] + 1
        for (stage, event), indices in self._doing.items():
            if view.target not in (None, self._kinds[indices[0]].device):
                continue
            if stage not in self._stages:
                continue
            back = view.target is None and event is Event.GRADIENT
            way = view.times.way_back(stage, None) // view.unit if back else 0
            ends = [self.grid.horizon - self._ticks[i] - way for i in indices]
            places = self.grid.after(np.array(ends, np.int64))
            entries = [
                (row, self._curves[i][[place]], row - 1)
                for i, place in zip(indices, places.tolist(), strict=True)
            ]
            number = np.array([-self._number(stage)], np.int64)
            undone = row + 1 if self.grid.middle is None else row
            self._add_at(f"done {stage}{event.value}", end, entries, number, undone)

    def laws(self, multipliers: Multipliers) -> Iterator[tuple[str, Ints, Ints, Multipliers]]:
        """Yield each law, the first and last places that its rows add up, and their multipliers."""
        first = 0
        for law, begin, end in self._laws:
            yield law, begin, end, multipliers[first : first + len(end)]
            first += len(end)

    def columns_of(self, kind: Kind) -> Ints:
        """Return the columns that count a kind of block, for all instants."""
        return self._curves[self._kinds.index(kind)]

    def flow(self, multipliers: Multipliers) -> Flow:
        """Return what the multipliers of the program's rows prove: nothing ends by the horizon."""
        view, grid = self._view, self.grid
        found: dict[str, tuple[tuple[int, int], ...]] = {}
        for law, begin, end, prices in self.laws(multipliers):
            # A law that is its own image stands for the two halves of what it is about.
            twice = 1 + (view.mirror is not None and view.law_image(law) == law)
            rows = zip(begin.tolist(), end.tolist(), prices.tolist(), strict=True)
            found[law] = tuple(
                (place, twice * value)
                for one, last, value in rows
                if value
                for place in range(one, last + 1)
            )
        found |= {view.law_image(law): pairs for law, pairs in found.items()}
        return Flow(
            target=view.target,
            devices=view.devices,
            unit=view.unit,
            horizon=grid.horizon,
            instants=tuple(grid.runs()),
            multipliers={law: pairs for law, pairs in found.items() if pairs},
        )
