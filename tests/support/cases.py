"""Many small cases in one test, where a test for each would take longer than the cases do."""

import functools
import inspect


def for_each(names, cases):
    """As `pytest.mark.parametrize`, in one test, whose error names the case. Patches of a case end with it."""
    names, cases = names.replace(" ", "").split(","), [*cases]

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def of_all(**fixtures):
            for case in cases:
                values = dict(zip(names, case if len(names) > 1 else [case], strict=True))
                try:
                    test(**fixtures, **values)
                except BaseException as error:  # also that no error was raised
                    error.add_note(f"in the case {values}")
                    raise
                finally:
                    if "monkeypatch" in fixtures:
                        fixtures["monkeypatch"].undo()

        others = [each for name, each in signature.parameters.items() if name not in names]
        of_all.__signature__ = signature.replace(parameters=others)
        return of_all

    return decorate
