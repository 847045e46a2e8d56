"""The measurements of migrations as tables."""

from collections.abc import Mapping, Sequence
from statistics import median

from bench.migration.load import CLIENTS, LoadedMove
from bench.migration.rate import Move

_MIB = 1 << 20


def rate_table(documents: int, document_bytes: int, moves: Mapping[str, Sequence[Move]]) -> str:
    """Format medians of the rounds for each kind of move, compared with the first kind."""
    lines = [f"\nmoving {documents:,} documents of {document_bytes:,} bytes"]
    lines.append(f"  {'':12} {'documents/s':>12} {'MB/s':>8} {'x':>5} {'s':>7}   CPU us per document; peak memory MiB")
    first = None
    for name, rounds in moves.items():
        rate = median(each.documents_per_second for each in rounds)
        first = first or rate
        seconds = median(each.seconds for each in rounds)
        cpu = ", ".join(
            f"{role} {median(each.cpu_seconds[role] / each.documents for each in rounds) * 1e6:.1f}"
            for role in rounds[0].cpu_seconds
        )
        memory = ", ".join(
            f"{role} {max(each.peak_memory[role] for each in rounds) / _MIB:,.0f}" for role in rounds[0].peak_memory
        )
        megabytes = rate * document_bytes / 1e6
        lines.append(
            f"  {name:12} {rate:12,.0f} {megabytes:8.1f} {rate / first:5.2f} {seconds:7.2f}   {cpu}"
            + (f"; {memory}" if memory else "")
        )
    return "\n".join(lines)


def pause_table(title: str, documents: int, moves: Mapping[str, LoadedMove]) -> str:
    """Format durations of writes, by target."""
    lines = [f"\n{title}, {CLIENTS} clients, while {documents:,} documents move"]
    lines.append(
        f"  {'':12} {'writes/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}   "
        f"{'alone':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}   {'move s':>7}"
    )
    for name, moved in moves.items():
        columns = [
            f"{each.operations_per_second:9,.0f} {each.p50 / 1e3:8.2f} {each.p99 / 1e3:8.2f} {each.max / 1e3:8.2f}"
            for each in (moved.during, moved.before)
        ]
        errors = moved.during.errors + moved.before.errors
        lines.append(
            f"  {name:12} {'   '.join(columns)}   {moved.move.seconds:7.2f}" + (f"   {errors} ERRORS" if errors else "")
        )
    return "\n".join(lines)


def slowdown_table(title: str, documents: int, moves: Mapping[str, LoadedMove]) -> str:
    """Format the loss of throughput of a read load, by target."""
    lines = [f"\n{title}, {CLIENTS} clients, while {documents:,} documents move"]
    lines.append(f"  {'':12} {'alone/s':>9} {'during/s':>9} {'slower':>7} {'p99 ms':>8} {'max ms':>8}   {'move s':>7}")
    for name, moved in moves.items():
        during = moved.during
        lines.append(
            f"  {name:12} {moved.before.operations_per_second:9,.0f} {during.operations_per_second:9,.0f} "
            f"{moved.slowdown:7.0%} {during.p99 / 1e3:8.2f} {during.max / 1e3:8.2f}   {moved.move.seconds:7.2f}"
            + (f"   {during.errors} ERRORS" if during.errors else "")
        )
    return "\n".join(lines)
