"""The drawing of the two layouts: four pairs of eight channels, and a dial for each pair that turns as positions grow.

It is SVG with classes; `docs/assets/site.css` colours and turns it.
"""

PAIRS = 4
CAPTION = (
    "Each dial is a pair of channels. It turns as the position grows, the first pair fast and the last one slowly. The "
    "layouts differ in which channels a dial turns. Point at a dial to see its channels."
)


def drawing() -> str:
    """A figure in HTML, without a blank line, so that Markdown leaves it alone."""
    pairs = "".join(_pair(pair) for pair in range(PAIRS))
    names = "".join(
        f'<text class="name" x="8" y="{y}">layout=&quot;{name}&quot;</text>'
        f'<text class="who" x="392" y="{y}">{who}</text>'
        for name, who, y in (
            ("half", "GPT-NeoX, Llama in transformers", 16),
            ("interleaved", "RoFormer, GPT-J, Meta\u2019s Llama", 262),
        )
    )
    picture = f'<svg viewBox="0 0 400 272" role="img" aria-label="{CAPTION}">{names}{pairs}</svg>'
    return f'<figure class="rope-layouts">{picture}<figcaption>{CAPTION}</figcaption></figure>'


def _pair(pair: int) -> str:
    """A dial, its two channels in both layouts, and the lines between them."""
    dial = 50 + 100 * pair
    parts = []
    for channels, y, edge, curve in (
        ((pair, pair + PAIRS), 24, 54, (80, 80, 108)),
        ((2 * pair, 2 * pair + 1), 216, 216, (192, 190, 164)),
    ):
        for channel in channels:
            x = 25 + 50 * channel
            parts.append(f'<path d="M{x} {edge} C{x} {curve[0]} {dial} {curve[1]} {dial} {curve[2]}"/>')
            parts.append(f'<rect x="{x - 17}" y="{y}" width="34" height="30" rx="6"/>')
            parts.append(f'<text class="channel" x="{x}" y="{y + 20}">x{channel}</text>')
    parts.append(f'<circle cx="{dial}" cy="136" r="28"/>')
    parts.append(f'<g class="hand"><line x1="{dial}" y1="136" x2="{dial + 24}" y2="136"/></g>')
    return f'<g class="pair pair-{pair}">{"".join(parts)}</g>'
