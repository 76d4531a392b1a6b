"""Generated mutants that no test has to notice: (file, line before, line after), and the reason."""

ACCEPTED: dict[tuple[str, str, str], str] = {
    (
        "_core/axes.py",
        "if counts != sizes:",
        "if counts > sizes:",
    ): "Pairs left over follow the first section, so that counts that differ are always the greater tuple.",
    (
        "_core/phases.py",
        "steps = (offset + (1 << (step - 1))) >> step",
        "steps = (offset + (1 // (step - 1))) >> step",
    ): "The remainder is at most one step instead of half a step. The split stays exact except for 2^-33.",
    (
        "_core/angles.py",
        "return sin * cos_change + cos * sin_change, cos * cos_change - sin * sin_change",
        "return sin % cos_change + cos * sin_change, cos * cos_change - sin * sin_change",
    ): "NumPy has no derivatives, and gets there never; on PyTorch, test_gradients_of_learned_frequencies_and_real_"
    "positions fails.",
    (
        "_core/config/__init__.py",
        "if message == str(error):",
        "if message is str(error):",
    ): "An error with one argument gives the same string again each time; a message that is not shortened is that one.",
    (
        "positions/_prompt.py",
        "if positions.max(initial=0) >= 2**31:",
        "if positions.max(initial= 1) >= 2**31:",
    ): "The number stands for a prompt without tokens; each one below 2**31 does.",
    (
        "positions/_prompt.py",
        'positions = np.zeros((axes, *types.shape), dtype="float64" if dtype == "float32" else "int64")',
        'positions = np.zeros((axes, *types.shape), dtype="float64" if dtype <= "float32" else "int64")',
    ): "The other dtype is int32, which is the greater string.",
}
