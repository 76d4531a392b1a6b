"""The command `rope-xp`. It needs the extra `rope-xp[cli]`."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit: 0; 1 if two embeddings differ or a report has warnings; 2 for bad input.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after `rope-xp`. The default is those of the process.

    Raises
    ------
    SystemExit
        Always, with the exit code.
    """
    try:
        from rope_xp.cli.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rope_xp"):
            raise
        print(f"rope-xp: the extra rope-xp[cli] must be installed; got no module {error.name!r}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(arguments))
