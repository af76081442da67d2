"""Draws graphs as SVG images, which adapt to a light or dark theme and load nothing from the network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """\
text{font:12px system-ui,sans-serif;fill:#1f2328}.note{fill:#59636e}.card{fill:#fff;stroke:#d1d9e0}
.node{fill:#eef2ff;stroke:#3b5bdb}.edge{fill:none;stroke:#59636e}.arrow{fill:#59636e}.label{paint-order:stroke;stroke:#fff;stroke-width:5px}
.model{fill:#7048e8}.tool{fill:#3b5bdb}.delegation{fill:#0c8599}.wait{fill:#f0b429}.error{fill:#d6336c}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9aa4af}.card{fill:#15181d;stroke:#30363d}
.node{fill:#1d2540;stroke:#7c95ff}.edge{stroke:#9aa4af}.arrow{fill:#9aa4af}.label{stroke:#15181d}
.model{fill:#9775fa}.tool{fill:#7c95ff}.delegation{fill:#3bc9db}.error{fill:#f06595}}"""
_NODE_HEIGHT, _LAYER_HEIGHT, _MARGIN, _BETWEEN = 30, 78, 24, 44
_CHARACTER = 7.2
"""Average width of a character in pixels."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One arrow of a graph, from the node with id `source` to that with id `target`."""

    source: str
    target: str
    label: str = ""
    is_conditional: bool = False
    """Whether the edge is one of several alternatives; it is drawn dashed."""


def svg_document(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return an SVG document of the given size in pixels with a background, from the SVG elements in `parts`."""
    card = f'<rect class="card" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'style="max-width:100%"><title>{escape(title)}</title><style>{_STYLE}</style>'
        + "\n".join([card, *parts])
        + "</svg>"
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """Return an SVG text element; `kind` is its CSS class, `anchor` the value of `text-anchor`."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(content)}</text>'


def image_html(svg: str, description: str) -> str:
    """Return an HTML image element with the SVG as its source, so that the SVG's style cannot affect the page."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{escape(description)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def graph_svg(nodes: Mapping[str, str], edges: Sequence[Edge], title: str = "Graph") -> str:
    """Return a drawing of a graph from top to bottom, as an SVG document.

    Edges to an earlier layer are drawn at the sides.

    Args:
        nodes: Id → label of each node; the first is at the top. Must not be empty.
        edges: The edges, between ids in `nodes`.
        title: Title of the image.
    """
    layers = _layers(nodes, edges)
    widths = {each: _CHARACTER * len(label) + 24 for each, label in nodes.items()}
    spans = [sum(widths[each] for each in layer) + _BETWEEN * (len(layer) - 1) for layer in layers]
    backward = any(_is_back(edge, layers) for edge in edges)
    width = max(spans) + 2 * _MARGIN + (2 * _BETWEEN if backward else 0)
    places: dict[str, tuple[float, float]] = {}
    for row, (layer, span) in enumerate(zip(layers, spans, strict=True)):
        x = (width - span) / 2
        for each in layer:
            places[each] = (x + widths[each] / 2, _MARGIN + row * _LAYER_HEIGHT + _NODE_HEIGHT / 2)
            x += widths[each] + _BETWEEN
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="arrow" d="M0 0 8 4 0 8z"/></marker></defs>'
    )
    parts = [marker, *(_drawn(edge, places, widths, width, _is_back(edge, layers)) for edge in edges)]
    for each, label in nodes.items():
        x, y = places[each]
        left, top = x - widths[each] / 2, y - _NODE_HEIGHT / 2
        box = f'x="{left:g}" y="{top:g}" width="{widths[each]:g}" height="{_NODE_HEIGHT}" rx="6"'
        parts += [f'<rect class="node" {box}/>', text(x, y + 4, label, anchor="middle")]
    height = 2 * _MARGIN + (len(layers) - 1) * _LAYER_HEIGHT + _NODE_HEIGHT
    return svg_document(width, height, title, parts)


def _layers(nodes: Mapping[str, str], edges: Sequence[Edge]) -> list[list[str]]:
    """Return the node ids grouped by their distance from the first node, nearest first, in the order of `nodes`.

    Unreachable nodes are in the last group.
    """
    first = next(iter(nodes))
    distance = {first: 0}
    pending = [first]
    # Breadth first: the list grows while it is read.
    for each in pending:
        for edge in edges:
            if edge.source == each and edge.target not in distance:
                distance[edge.target] = distance[each] + 1
                pending.append(edge.target)
    last = max(distance.values())
    layers: list[list[str]] = [[] for _ in range(last + 1)]
    for each in nodes:
        layers[distance.get(each, last)].append(each)
    return layers


def _is_back(edge: Edge, layers: Sequence[Sequence[str]]) -> bool:
    """Whether an edge leads to its own layer or an earlier one."""
    row = {each: number for number, layer in enumerate(layers) for each in layer}
    return row[edge.target] <= row[edge.source]


def _drawn(
    edge: Edge, places: Mapping[str, tuple[float, float]], widths: Mapping[str, float], width: float, is_back: bool
) -> str:
    """Return the SVG elements of one edge and its label.

    Args:
        places: Node id → center of its box.
        widths: Node id → width of its box.
        width: Width of the image.
        is_back: Whether the edge leads to an earlier layer, and is drawn at the side.
    """
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    if is_back:
        side = 1 if x1 > width / 2 else -1
        x1, x2 = x1 + side * widths[edge.source] / 2, x2 + side * widths[edge.target] / 2
        out = side * _BETWEEN + (max(x1, x2) if side > 0 else min(x1, x2))
        path = f"M{x1:g} {y1:g}C{out:g} {y1:g} {out:g} {y2:g} {x2:g} {y2:g}"
    else:
        y1, y2 = y1 + _NODE_HEIGHT / 2, y2 - _NODE_HEIGHT / 2
        middle = (y1 + y2) / 2
        path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    dash = ' stroke-dasharray="4 3"' if edge.is_conditional else ""
    label = text((x1 + x2) / 2, (y1 + y2) / 2 + 4, edge.label, "note label", "middle") if edge.label else ""
    return f'<path class="edge" d="{path}"{dash} marker-end="url(#arrow)"/>{label}'
