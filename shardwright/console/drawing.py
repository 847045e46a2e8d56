"""Drawings as SVG: sparklines, bars, the chunk map and the hash ring. No scripts, no style attributes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from math import cos, log10, pi, sin
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlencode

from bson.json_util import CANONICAL_JSON_OPTIONS, dumps
from markupsafe import Markup, escape

from shardwright.console.shell_syntax import short_text

Document = Mapping[str, Any]

MODES: Final = {
    "shard": "by shard",
    "size": "by size",
    "zone": "by zone",
    "age": "by time of the last move",
    "jumbo": "jumbo chunks",
}
COLOURS: Final = 8
_FIRST_ZONE: Final = 3
_WIDTH: Final = 1000
_LANE: Final = 26
_GAP: Final = 6
_AGES: Final = 6
_RING: Final = 150
HEAT_STEPS: Final = 8
_HEAT_HEIGHT: Final = 480
_HEAT_ROW_MIN: Final = 10
_HEAT_ROW_MAX: Final = 48
_HASH_SPAN: Final = 2**64


def sparkline(values: Sequence[float | None], label: str, width: int = 160, height: int = 36) -> Markup:
    """Draw a line of the last values; gaps are left out."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup('<span class="muted small">collecting…</span>')
    top = max(known) or 1.0
    step = width / (len(values) - 1)
    points = [
        f"{number * step:.1f},{height - 2 - (height - 4) * value / top:.1f}"
        for number, value in enumerate(values)
        if value is not None
    ]
    line = " ".join(points)
    start, end = points[0].partition(",")[0], points[-1].partition(",")[0]
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}" '
        'preserveAspectRatio="none"><polygon class="spark-area" points="{start},{h} {line} {end},{h}"/>'
        '<polyline class="spark-line" points="{line}"/></svg>'
    ).format(w=width, h=height, label=label, line=line, start=start, end=end)


def bar(share: float | None, kind: str = "", width: int = 120) -> Markup:
    """Draw a horizontal bar for a share of one."""
    part = max(0.0, min(1.0, share or 0.0))
    return Markup(
        '<svg class="bar" viewBox="0 0 {w} 8" width="{w}" height="8" aria-hidden="true">'
        '<rect class="bar-back" width="{w}" height="8" rx="4"/>'
        '<rect class="bar-fill {kind}" width="{part:.1f}" height="8" rx="4"/></svg>'
    ).format(w=width, kind=kind, part=part * width)


def stacked(amounts: Mapping[str, float], shards: Sequence[str], width: int = 220) -> Markup:
    """Draw a bar divided between shards."""
    total = sum(amounts.values())
    parts, at = [], 0.0
    for shard in shards:
        if total and amounts.get(shard):
            size = width * amounts[shard] / total
            parts.append(
                Markup('<rect class="{c}" x="{x:.2f}" width="{w:.2f}" height="12"><title>{t}</title></rect>').format(
                    c=colour(shard, shards), x=at, w=max(0.0, size - 1), t=f"{shard}: {amounts[shard]:,.0f}"
                )
            )
            at += size
    label = ", ".join(f"{shard} {amounts.get(shard, 0):,.0f}" for shard in shards)
    return Markup(
        '<svg class="stacked" viewBox="0 0 {w} 12" width="{w}" height="12" role="img" aria-label="{label}">'
        '<rect class="bar-back" width="{w}" height="12"/>{parts}</svg>'
    ).format(w=width, label=label, parts=Markup("").join(parts))


def colour(name: str, names: Sequence[str]) -> str:
    """Return the CSS class with the colour of a shard."""
    return f"c{names.index(name) % COLOURS}" if name in names else "c-none"


def zone_colour(name: str, names: Sequence[str]) -> str:
    """Return the CSS class with the colour of a zone; the first zones differ from the first shards."""
    return f"c{(names.index(name) + _FIRST_ZONE) % COLOURS}" if name in names else "c-none"


def heat_map(document: Document) -> Markup:
    """Draw a row for each range of the shard key, a column for each interval, and the numbers as colours."""
    bands, columns = document["bands"], len(document["columns"])
    if not bands:
        return Markup("")
    height = max(_HEAT_ROW_MIN, min(_HEAT_ROW_MAX, _HEAT_HEIGHT // len(bands)))
    width = _WIDTH / columns
    rows = []
    for number, (band, cells) in enumerate(zip(bands, document["cells"], strict=True)):
        rects = Markup("").join(
            Markup('<rect class="heat{s}" x="{x:.1f}" width="{w:.1f}" y="{y}" height="{h}"/>').format(
                s=step, x=width * at, w=width * length + 0.2, y=number * height, h=height
            )
            for step, at, length in _runs(cells, document["largest"])
        )
        title = f"{short_text(band['min'])} up to {short_text(band['max'])}: " + ", ".join(
            f"{band[name]:,} {name}" for name in ("reads", "writes", "documents", "bytes")
        )
        address = "/chunks?" + urlencode({"ns": document["ns"], "from": _json(band["min"]), "to": _json(band["max"])})
        rows.append(
            Markup(
                '<a href="{a}" aria-label="{t}"><g><title>{t}</title>'
                '<rect class="lane" width="{w}" y="{y}" height="{h}"/>{r}</g></a>'
            ).format(a=address, t=title, r=rects, w=_WIDTH, y=number * height, h=height)
        )
    return Markup('<svg class="heat" viewBox="0 0 {w} {h}" shape-rendering="crispEdges">{r}</svg>').format(
        w=_WIDTH, h=height * len(bands), r=Markup("").join(rows)
    )


def _runs(cells: Sequence[float], largest: float) -> Iterator[tuple[int, int, int]]:
    """Yield runs of cells of one colour as (step, first cell, number of cells); empty cells are left out."""
    steps = (heat_step(cell, largest) if cell else None for cell in cells)
    for step, run in groupby(enumerate(steps), key=itemgetter(1)):
        numbers = [number for number, _ in run]
        if step is not None:
            yield step, numbers[0], len(numbers)


def heat_step(value: float, largest: float) -> int:
    """Return the step of the colour scale, from 0 to `HEAT_STEPS` - 1, logarithmic as loads are."""
    if value <= 0 or largest <= 0:
        return 0
    return min(HEAT_STEPS - 1, round((HEAT_STEPS - 1) * log10(1 + value) / log10(1 + largest)))


def _json(bound: Mapping[str, Any]) -> str:
    return dumps(bound, json_options=CANONICAL_JSON_OPTIONS)


def chunk_map(document: Document, mode: str, now: datetime) -> Markup:
    """Draw a lane for each shard, the chunks as bands in the order of the shard key, and the zones below."""
    shards, found = document["shards"], document["bands"]
    if not found:
        return Markup("")
    total = sum(band["chunks"] for band in found)
    zones = sorted({zone["zone"] for zone in document["zones"]})
    lanes = {shard: number * (_LANE + _GAP) for number, shard in enumerate(shards)}
    parts: list[Markup] = [
        Markup('<rect class="lane" x="0" y="{y}" width="{w}" height="{h}" rx="3"/>').format(y=y, w=_WIDTH, h=_LANE)
        for y in lanes.values()
    ]
    zone_parts: list[Markup] = []
    height = len(shards) * (_LANE + _GAP)
    largest = largest_band(document)
    address = escape(f"/chunks?{urlencode({'ns': document['ns']})}&band=")
    at = 0.0
    for number, band in enumerate(found):
        width = _WIDTH * band["chunks"] / total
        shown = max(0.6, width - (1.0 if width > 4 else 0.0))
        title = _band_title(band, document["key"], now)
        # Plain strings take a fifth of Markup's time, which matters for 600 bands. All texts are escaped.
        rects = "".join(
            f'<rect class="{_band_class(band, shard, mode, shards, zones, now, largest)}" x="{at:.2f}" '
            f'y="{lanes[shard]}" width="{shown:.2f}" height="{_LANE}"{_opacity(count / band["chunks"])}/>'
            for shard, count in band["shards"].items()
            if shard in lanes
        )
        begins = escape(f"from {short_text(band['min'], 30)}")
        parts.append(
            Markup(
                f'<a href="{address}{number}" tabindex="-1" class="band" aria-label="{begins}">{rects}'
                f"<title>{escape(title)}</title></a>"
            )
        )
        if zones and band["zone"]:
            zone_parts.append(
                Markup(
                    '<rect class="{c}" x="{x:.2f}" y="{y}" width="{w:.2f}" height="6"><title>{t}</title></rect>'
                ).format(c=zone_colour(band["zone"], zones), x=at, y=height, w=width, t=f"zone {band['zone']}")
            )
        at += width
    full = height + (10 if zones else 0)
    label = f"{total:,} chunks of {document['ns']} on {len(shards)} shards"
    return Markup(
        '<svg class="chunk-map" viewBox="0 0 {w} {h}" height="{h}" preserveAspectRatio="none" role="group" '
        'aria-label="{label}">{parts}{zones}</svg>'
    ).format(w=_WIDTH, h=full, label=label, parts=Markup("").join(parts), zones=Markup("").join(zone_parts))


def _opacity(share: float) -> str:
    """Return the opacity attribute for a shard's share of a band's chunks."""
    return "" if share == 1 else f' opacity="{0.25 + 0.75 * share:.2f}"'


def largest_band(document: Document) -> int:
    """Return the bytes of the largest measured band of a chunk map; 0 if none was measured."""
    return max((band["bytes"] or 0 for band in document["bands"]), default=0)


def size_step(value: float, largest: float) -> int:
    """Return the step of the colour scale for a size, linear from 0 to `HEAT_STEPS` - 1."""
    return round((HEAT_STEPS - 1) * value / largest) if largest else 0


def lane_heights(document: Document) -> list[tuple[str, str, int]]:
    """Return the labels of the lanes: shard, class of its colour, and number of chunks."""
    shards = document["shards"]
    counts = dict.fromkeys(shards, 0)
    for band in document["bands"]:
        for shard, count in band["shards"].items():
            counts[shard] = counts.get(shard, 0) + count
    return [(shard, colour(shard, shards), counts[shard]) for shard in shards]


def _band_title(band: Document, key: Document, now: datetime) -> str:
    low, high = short_text(band["min"], 50), short_text(band["max"], 50)
    where = ", ".join(f"{shard} {count}" if band["chunks"] > 1 else shard for shard, count in band["shards"].items())
    parts = [f"{', '.join(key)} from {low} up to {high}", where]
    if band["chunks"] > 1:
        parts.append(f"{band['chunks']:,} chunks")
    if band["jumbo"]:
        parts.append(f"{band['jumbo']} jumbo")
    if band["zone"]:
        parts.append(f"zone {band['zone']}")
    if band["bytes"] is not None:
        parts.append(f"about {band['bytes']:,} bytes")
    if band["movedAt"]:
        parts.append(f"here since {datetime.fromtimestamp(band['movedAt'], UTC):%Y-%m-%d %H:%M} UTC")
    return "\n".join(parts)


def _band_class(
    band: Document, shard: str, mode: str, shards: Sequence[str], zones: Sequence[str], now: datetime, largest: int
) -> str:
    if mode == "zone":
        return zone_colour(band["zone"], zones) if band["zone"] else "c-none"
    if mode == "size":
        return "c-none" if band["bytes"] is None else f"heat{size_step(band['bytes'], largest)}"
    if mode == "jumbo":
        return "c-alarm" if band["jumbo"] else "c-none"
    if mode == "age":
        return f"age{age_step(band['movedAt'], now)}"
    return colour(shard, shards)


def age_step(moved_at: float | None, now: datetime) -> int:
    """Return 0 for a move in the last minute, one more for each tenfold time; 5 is a week and longer."""
    seconds = now.timestamp() - moved_at if moved_at else float("inf")
    if seconds < 60:
        return 0
    return min(_AGES - 1, int(log10(min(seconds, 1e9) / 60)) + 1)


AGE_TEXTS: Final = ("last minute", "10 minutes", "2 hours", "17 hours", "a week", "older")


def hash_ring(document: Document) -> Markup:
    """Draw the space of hashes as a ring, clockwise from the smallest on top; empty unless the key begins hashed."""
    if not document["isHashed"]:
        return Markup("")
    shards, parts = document["shards"], []
    for number, band in enumerate(document["bands"]):
        start, end = _hash_part(band["min"], 0.0), _hash_part(band["max"], 1.0)
        owner = max(band["shards"], key=band["shards"].__getitem__, default="")
        link = f"/chunks?{urlencode({'ns': document['ns'], 'band': number})}"
        parts.append(
            Markup(
                '<a href="{l}" tabindex="-1" aria-label="{t}"><path class="arc {c}" d="{d}"/><title>{t}</title></a>'
            ).format(l=link, c=colour(owner, shards), d=_arc(start, end), t=f"{owner}: {end - start:.1%} of all hashes")
        )
    size = _RING * 2
    return Markup(
        '<svg class="ring" viewBox="0 0 {s} {s}" role="group" aria-label="hash ring of {ns}">{parts}'
        '<text class="ring-text" x="{c}" y="{c}">hashes</text></svg>'
    ).format(s=size, c=_RING, ns=document["ns"], parts=Markup("").join(parts))


def _hash_part(bound: Document, otherwise: float) -> float:
    value = next(iter(bound.values()))
    return (int(value) + _HASH_SPAN // 2) / _HASH_SPAN if isinstance(value, int) else otherwise


def _arc(start: float, end: float) -> str:
    outer, inner = _RING - 6, _RING - 44
    end = min(end, start + 0.99999)

    def point(part: float, radius: float) -> str:
        angle = part * 2 * pi - pi / 2
        return f"{_RING + radius * cos(angle):.2f} {_RING + radius * sin(angle):.2f}"

    large = int(end - start > 0.5)
    return (
        f"M{point(start, outer)}A{outer} {outer} 0 {large} 1 {point(end, outer)}"
        f"L{point(end, inner)}A{inner} {inner} 0 {large} 0 {point(start, inner)}Z"
    )


def shares_of_ring(document: Document) -> list[tuple[str, str, float]]:
    """Return each shard with its colour and its share of all hashes."""
    found: dict[str, float] = {}
    for band in document["bands"]:
        share = _hash_part(band["max"], 1.0) - _hash_part(band["min"], 0.0)
        total = sum(band["shards"].values()) or 1
        for shard, count in band["shards"].items():
            found[shard] = found.get(shard, 0.0) + share * count / total
    return [(shard, colour(shard, document["shards"]), found.get(shard, 0.0)) for shard in document["shards"]]


def zone_colours(zones: Iterable[Document]) -> list[tuple[str, str]]:
    """Return each zone with its colour."""
    names = sorted({zone["zone"] for zone in zones})
    return [(name, zone_colour(name, names)) for name in names]
