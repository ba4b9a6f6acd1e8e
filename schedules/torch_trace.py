"""Reading what torch's profiler exports: the ``PP:`` ranges of its pipelining runtime.

The runtime puts a range around each action, named ``PP:`` and the action, as ``PP:0F1``. Where the
ops ran on a GPU the profiler writes each range once more with the times of its kernels; those are
taken then. Otherwise a range also covers the wait for the message that its op needs, so that the
median of many is an upper estimate.

One file is one rank. Stages have torch's numbers there, which are ours only where one chain passes
them. Time stamps are in microseconds, near 1.7e15 where they count from 1970, which
is more than a float keeps of their decimals; they are read as decimals.
"""

import gzip
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from pathlib import Path

import msgspec

from bubbleproof.schedules.files import LARGEST_FILE_BYTES, AnyPath, Source, printable, read_source
from bubbleproof.schedules.intervals import Interval
from bubbleproof.schedules.ops import Op, Pair, parse_block
from bubbleproof.schedules.profile import Profile, placement_of, spreads
from bubbleproof.schedules.quantity import LARGEST
from bubbleproof.schedules.torch_numbers import chains_of_numbers

_GPU_RANGE = "gpu_user_annotation"
_PREFIX = "PP:"


class _Event(msgspec.Struct):
    """What is read of an event; everything else in it is passed over."""

    ph: str = ""
    name: object = ""
    cat: object = ""
    ts: Decimal | None = None
    dur: Decimal | None = None


class _Rank(msgspec.Struct):
    rank: int | None = None


class _File(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]
    distributed_info: _Rank | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The ops in a trace.

    Parameters
    ----------
    rank
        Whose it is; None where the file does not say.
    intervals
        Its ops in the order of their starts, in nanoseconds; stages have torch's numbers.
    pairs
        How many overlapped pairs there are beside them; their halves have no times of their own.
    on_gpu
        Whether the times are those of kernels, without waits for messages.
    """

    rank: int | None
    intervals: tuple[Interval, ...]
    pairs: int
    on_gpu: bool


def read_trace(path: AnyPath) -> Trace:
    """Read the pipeline ops of a trace that torch.profiler exported.

    Raises
    ------
    ValueError
        If the file cannot be read, is no trace or cut off, or has no op in it; with its name and,
        where there is one, the line and column.
    """
    source = _source(path)
    events, rank = decoded(source)
    ranges = [
        event
        for event in events
        if event.ph == "X" and isinstance(event.name, str) and event.name.startswith(_PREFIX)
    ]
    on_gpu = any(event.cat == _GPU_RANGE for event in ranges)
    intervals: list[Interval] = []
    pairs = 0
    for event in ranges:
        if on_gpu and event.cat != _GPU_RANGE:
            continue
        text = str(event.name).removeprefix(_PREFIX)
        try:
            block = parse_block(text)
        except ValueError:
            # Messages and steps on weights have ranges, too.
            continue
        ts, dur = _time(event.ts), _time(event.dur)
        if ts is None or dur is None or dur < 0:
            raise source.of(
                f"{event.name}: a range needs ts and dur of 0 or more, in microseconds, below 2^53"
            )
        if isinstance(block, Pair):
            pairs += 1
            continue
        start = int(ts * 1000)
        intervals.append(Interval(block, start, start + int(dur * 1000)))
    if not intervals:
        raise source.of(
            f"no pipeline ops found among {len(events)} events; torch's pipelining runtime writes "
            "ranges as PP:0F1 for a forward, where torch.profiler records the CPU"
        )
    return Trace(rank, tuple(sorted(intervals, key=_start)), pairs, on_gpu)


def profile_of_traces(traces: Sequence[Trace], *, skip: int = 1) -> tuple[Profile, tuple[int, ...]]:
    """Return the profile that the traces of all ranks make, and each chain's microbatches.

    Parameters
    ----------
    traces
        One for each rank of one pipeline: in the order of its devices, or with their ranks, whose
        order is then taken for that of the devices.
    skip
        How many of the first times of each op are not counted; one is always left.

    Returns
    -------
    profile
        Stages are numbered without gaps, in the order of torch's numbers.
    microbatches
        For each chain how many passed it.

    Raises
    ------
    ValueError
        If two traces are of one rank or of one stage, or a stage is in none.
    """
    device_of: dict[int, int] = {}
    passed: defaultdict[int, set[int]] = defaultdict(set)
    kept: list[Interval] = []
    for rank, trace in enumerate(_by_device(traces)):
        for stage in sorted({interval.op.stage for interval in trace.intervals}):
            if device_of.setdefault(stage, rank) != rank:
                raise ValueError(
                    f"stage {stage} is in two traces; one rank runs a stage, so give the traces of "
                    "one pipeline, those that differ in their pipeline coordinate alone"
                )
        for interval in trace.intervals:
            passed[interval.op.stage].add(interval.op.microbatch)
        kept += _without_first(trace.intervals, skip)
    chains = chains_of_numbers(passed)
    ours = {number: stage for stage, number in enumerate(chain.from_iterable(chains))}
    placement = placement_of(
        tuple(device_of[number] for number in ours),
        tuple(tuple(ours[number] for number in numbers) for numbers in chains),
        len(traces),
    )
    intervals = (replace(each, op=replace(each.op, stage=ours[each.op.stage])) for each in kept)
    of_chain = [set[int]().union(*(passed[number] for number in numbers)) for numbers in chains]
    microbatches = tuple(1 + max(own) - min(own) for own in of_chain)
    return Profile(placement, spreads(intervals)), microbatches


def _by_device(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces in the order of devices."""
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    for rank in ranks:
        if ranks.count(rank) > 1:
            raise ValueError(
                f"rank {rank} is given {ranks.count(rank)} times; give one trace for each rank"
            )
    if len(ranks) < len(traces):
        return list(traces)
    return [trace for _, trace in sorted(zip(ranks, traces, strict=True), key=itemgetter(0))]


def _without_first(intervals: Sequence[Interval], skip: int) -> list[Interval]:
    of_op: defaultdict[Op, list[Interval]] = defaultdict(list)
    for interval in intervals:
        of_op[interval.op].append(interval)
    return [each for times in of_op.values() for each in times[min(skip, len(times) - 1) :]]


def decoded(source: Source) -> tuple[list[_Event], int | None]:
    """Return the events of a trace, and its rank where it says one.

    Raises
    ------
    ValueError
        If the text is cut off, no JSON or no trace.
    """
    data = source.text.encode()
    try:
        if source.text.lstrip().startswith("["):
            return msgspec.json.decode(data, type=list[_Event]), None
        file = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as error:
        raise source.of(
            f'no trace of torch.profiler: {error}; {{"traceEvents": [...]}} is one'
        ) from None
    except msgspec.DecodeError as error:
        raise _json_fault(source, data, str(error)) from None
    except RecursionError:
        raise source.of("the text is nested too deeply; no trace of torch.profiler is") from None
    return file.trace_events, None if file.distributed_info is None else file.distributed_info.rank


def _json_fault(source: Source, data: bytes, message: str) -> ValueError:
    what, _, place = message.partition("(byte ")
    if not place:
        return source.at(
            len(source.text), "the text ends within a value; the file is cut off, export it again"
        )
    before = data[: int(place.rstrip(")"))].decode(errors="ignore")
    return source.at(
        len(before),
        f"no valid JSON: {what.strip().removeprefix('JSON is malformed: ')}; profile takes traces "
        "of torch.profiler, which are JSON, one for each rank, or PATH:callable of a model",
    )


def _source(path: AnyPath) -> Source:
    """Read a text, or one that is compressed by gzip, as newer trainers write traces."""
    if Path(path).suffix.lower() != ".gz" or not Path(path).is_file():
        return read_source(path)
    name = printable(path)
    try:
        with gzip.open(path, "rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
        if len(data) > LARGEST_FILE_BYTES:
            raise ValueError(f"{name}: larger than {LARGEST_FILE_BYTES} bytes; trace fewer steps")
        return Source(name, data.decode())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name}: is no whole gzip file ({error}); export it again") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is no text; a trace of torch.profiler is JSON") from None


def _time(value: Decimal | None) -> Decimal | None:
    """Return a time if it is one that can be kept: a Decimal may be NaN, or 1e9999999."""
    if value is None or not value.is_finite() or not -LARGEST < value < LARGEST:
        return None
    return value


def _start(interval: Interval) -> int:
    return interval.start_ns
