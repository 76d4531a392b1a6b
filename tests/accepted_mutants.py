"""Generated mutants that no test has to notice: (file, line before, line after), and the reason."""

ACCEPTED: dict[tuple[str, str, str], str] = {
    (
        "axes.py",
        "if counts != sizes:",
        "if counts > sizes:",
    ): "Pairs left over follow the first section, so that counts that differ are always the greater tuple.",
    (
        "phases.py",
        "steps = (offset + (1 << (step - 1))) >> step",
        "steps = (offset + (1 // (step - 1))) >> step",
    ): "The remainder is at most one step instead of half a step. The split stays exact except for 2^-33.",
}
