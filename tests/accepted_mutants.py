"""Generated mutants that no test has to notice: (file, line before, line after), and the reason."""

ACCEPTED: dict[tuple[str, str, str], str] = {
    (
        "phases.py",
        "steps = (offset + (1 << (step - 1))) >> step",
        "steps = (offset + (1 // (step - 1))) >> step",
    ): "The remainder is at most a step in place of half of one; the split stays exact, and the error below 2^-36.",
}
