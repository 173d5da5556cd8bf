# SPDX-License-Identifier: Apache-2.0
"""Curves over steps as an SVG picture: plot(path, title, {name: values})."""

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 60, 40, 20, 50
# The first is whole and below, so that curves that coincide are all seen.
LINES = (("#8fb0d9", "", 4), ("#b03030", "8 5", 1.5), ("#2e7d32", "2 4", 1.5))


def ticks(low, high, wanted=6):
    """Round numbers (1, 2 or 5 times a power of ten apart) from low to high."""
    step = next(u * 10.0 ** p for p in range(-6, 9) for u in (1, 2, 5) if (high - low) / (u * 10.0 ** p) <= wanted)
    return [step * i for i in range(int(-(-low // step)), int(high // step) + 1)]


def plot(path, title, curves, y_name="loss (nats per token)", x_name="step"):
    low = min(min(values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    high = high if high > low else low + 1
    last = max(len(values) for values in curves.values())
    plane_w, plane_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(step):
        return LEFT + plane_w * (step - 1) / max(last - 1, 1)

    def y(value):
        return TOP + plane_h * (high - value) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           f'font-size="13">', f'<title>{title}</title>', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="{TOP - 16}" font-size="15">{title}</text>']
    for value in ticks(low, high):
        out.append(f'<path d="M{LEFT} {y(value):.1f}h{plane_w}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for step in ticks(1, last, 10):
        out.append(f'<text x="{x(step):.1f}" y="{TOP + plane_h + 18}" text-anchor="middle">{step:g}</text>')
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{plane_w}" height="{plane_h}" fill="none" stroke="#555"/>'
               f'<text x="{LEFT + plane_w / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{x_name}</text>'
               f'<text transform="translate(16 {TOP + plane_h / 2:.0f}) rotate(-90)" text-anchor="middle">'
               f'{y_name}</text>')
    for i, (name, values) in enumerate(curves.items()):
        colour, dashes, width = LINES[i % len(LINES)]
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in enumerate(values, 1))
        row = TOP + 20 + 20 * i
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" '
                   f'stroke-dasharray="{dashes}"/>'
                   f'<path d="M{WIDTH - 250} {row - 4}h30" stroke="{colour}" stroke-width="{width}" '
                   f'stroke-dasharray="{dashes}"/><text x="{WIDTH - 212}" y="{row}">{name}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>", ""]))
