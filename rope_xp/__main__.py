"""`python -m rope_xp`: the command `rope-xp`."""

from rope_xp.cli import main

if __name__ == "__main__":
    main()
