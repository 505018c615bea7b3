"""Line plots as SVG, for the figures of docs/benchmarks: panels above each other."""

COLOURS = ["#4477aa", "#228833", "#ccbb44", "#ee6677", "#66ccee", "#aa3377"]
WIDTH, PANEL, FIELD = 760, 250, 200
LEFT, RIGHT = 60, 740


class Panel:
    """A title, a unit of the horizontal axis, and series: name, and points in the order of x. `ticks` are
    values of x to be named. Both axes begin at 0; `end` and `top` are where they end, without them those of the
    points. A name that begins with `-` is dashed, and is named without that."""

    def __init__(self, title, unit, series, ticks, end=None, top=None):
        self.title, self.unit, self.series, self.ticks = title, unit, series, ticks
        points = [point for _, line in series for point in line]
        self.end = end or max(x for x, _ in points)
        self.top = top or max(y for _, y in points)

    def draw(self, base):
        """Elements of the panel whose horizontal axis is at `base`."""
        def place(x, y):
            return LEFT + (RIGHT - LEFT) * x / self.end, base - FIELD * min(y / self.top, 1)
        yield f'<text x="{LEFT}" y="{base - 228}">{self.title}</text>'
        for part in range(5):
            y = base - FIELD * part / 4
            yield (f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{self.top * part / 4:.4g}</text>')
        for tick in self.ticks:
            yield (f'<text x="{place(tick, 0)[0]:.0f}" y="{base + 15}" text-anchor="middle">'
                   f'{tick}{self.unit}</text>')
        for number, (name, line) in enumerate(self.series):
            colour = COLOURS[number % len(COLOURS)]
            dash = ' stroke-dasharray="6 4"' if name.startswith("-") else ""
            points = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in line)
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'
            yield f'<text x="{LEFT + 170 * number}" y="{base - 212}" fill="{colour}">{name.removeprefix("-")}</text>'


def write(path, panels):
    """Writes the panels, from top to bottom."""
    height = PANEL * len(panels) + 20
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for number, panel in enumerate(panels):
        lines += panel.draw(PANEL * (number + 1) - 10)
    with open(path, "w", encoding="ascii") as to:
        to.write("\n".join([*lines, "</svg>\n"]))
