"""torch and lightning, loaded in two thirds of the time: importing this module before them is all that there is to do.

They make so many objects that are there to stay that Python's searches for garbage among them take a second. Here these rest
while the libraries load; afterwards what was left is exempt from them (``gc.freeze``) until the process ends.
"""

import atexit
import gc


def _let_go() -> None:
    """Exempt nothing more, but search no oftener than the interpreter must when it ends.

    Triton, which torch loads, would report as leaked what is never collected.
    """
    gc.unfreeze()
    gc.disable()


_was_enabled = gc.isenabled()
gc.disable()
try:
    import lightning  # noqa: F401
    import torch  # noqa: F401
finally:
    gc.freeze()
    atexit.register(_let_go)
    if _was_enabled:
        gc.enable()
