"""Generated mutants that no test has to notice: (file, line before, line after), and the reason."""

ACCEPTED: dict[tuple[str, str, str], str] = {
    (
        "axes.py",
        "if counts != sizes:",
        "if counts > sizes:",
    ): "Axes that take turns leave pairs to the first alone, so that other counts are always the greater tuple.",
    (
        "phases.py",
        "steps = (offset + (1 << (step - 1))) >> step",
        "steps = (offset + (1 // (step - 1))) >> step",
    ): "The remainder is at most a step in place of half of one; the split stays exact but for 2^-33.",
}
